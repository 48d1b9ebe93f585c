"""What people see in a browser: the dashboard, widgets and the files they load."""
