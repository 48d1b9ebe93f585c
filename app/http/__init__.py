"""What every route shares: authentication, bodies, errors, transactions, paging, kept answers."""
