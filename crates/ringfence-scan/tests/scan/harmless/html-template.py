from string import Template
import html

page = Template("<h1>$title</h1><p>$text</p>")
print(page.substitute(title=html.escape(inputs["title"]), text=html.escape(inputs["text"])))
