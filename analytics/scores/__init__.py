"""Points for actions: catalog, tokens, limits, the ledger, integrity."""
