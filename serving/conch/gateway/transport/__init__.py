"""The gateway as a server: sockets, connections, layers around the app, an orderly end."""
