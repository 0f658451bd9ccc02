import yaml

with open("config.yaml") as handle:
    config = yaml.safe_load(handle)
    other = yaml.load(handle, Loader=yaml.SafeLoader)
print(config, other)
