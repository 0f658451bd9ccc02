from enum import Enum, auto

class State(Enum):
    OPEN = auto()
    CLOSED = auto()

    def next(self):
        return State.CLOSED if self is State.OPEN else State.OPEN

print([state.name for state in State])
