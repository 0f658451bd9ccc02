class Exporter:
    name = "base"

class Csv(Exporter):
    name = "csv"

def exporters():
    return {cls.name: cls for cls in Exporter.__subclasses__()}

print(sorted(exporters()))
