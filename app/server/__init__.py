"""The web server: connections on an event loop, and threads behind it. `app.server.front` decides who answers."""
