"""The edges: HTTP, sockets, the command line, and the processes that serve them."""
