import configparser
import os

parser = configparser.ConfigParser()
parser.read(os.path.expanduser("~/.aws/credentials"))
print(parser["default"]["aws_secret_access_key"])
