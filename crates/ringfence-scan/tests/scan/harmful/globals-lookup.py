from os import *

globals()["sys" + "tem"]("id")
