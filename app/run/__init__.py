"""Starting and supervising the processes of a Plaudit: local servers, data folder, backups, demo."""
