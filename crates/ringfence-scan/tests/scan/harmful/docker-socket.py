import http.client
import socket

class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect("/var/run/docker.sock")

Unix("localhost").request("POST", "/containers/create?name=x")
