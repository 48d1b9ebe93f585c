"""What every route shares: authentication, bodies, errors, transactions, paging, cached answers."""
