import sqlite3

db = sqlite3.connect("cache.db")
db.execute("create table if not exists notes (id integer primary key, text)")
db.execute("insert into notes (text) values (?)", ("hello",))
db.commit()
