"""Starting and keeping up the processes of a Plaudit: servers, data folder, backups, demo."""
