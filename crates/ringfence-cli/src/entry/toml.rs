//! The entry in TOML. `toml_edit` keeps comments, order and spaces of everything else.

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};

use super::{Entry, EntryError, NAME};

pub fn put(text: &str, list: &str, entry: &Entry) -> Result<String, EntryError> {
    edit(text, |document| {
        let wrong = || EntryError::NotAnObject { name: list.to_owned(), line: 1 };
        // A table that only holds other tables needs no line of its own.
        let servers = document.entry(list).or_insert_with(|| Item::Table(implicit()));
        let inline = servers.is_inline_table();
        let servers = servers.as_table_like_mut().ok_or_else(wrong)?;
        if servers.get(NAME).and_then(Item::as_table_like).is_some_and(|there| same(there, entry)) {
            return Ok(());
        }
        let item = if inline { Item::Value(Value::InlineTable(values(entry).collect())) } else { table(entry) };
        servers.insert(NAME, item);
        Ok(())
    })
}

pub fn take(text: &str, list: &str) -> Result<String, EntryError> {
    edit(text, |document| {
        if let Some(servers) = document.get_mut(list).and_then(Item::as_table_like_mut) {
            servers.remove(NAME);
            if servers.is_empty() && document.get(list).and_then(Item::as_table).is_some_and(Table::is_implicit) {
                document.remove(list);
            }
        }
        Ok(())
    })
}

/// `toml_edit` ends every line with a line feed: files that end them in the other way get it back.
fn edit(text: &str, change: impl FnOnce(&mut DocumentMut) -> Result<(), EntryError>) -> Result<String, EntryError> {
    let (crlf, lines) = (text.matches("\r\n").count(), text.matches('\n').count());
    if crlf != 0 && crlf != lines {
        return Err(EntryError::MixedLines);
    }
    let plain = text.replace("\r\n", "\n");
    let mut document: DocumentMut = plain.parse()?;
    // What it cannot give back as it was, it must not touch.
    if document.to_string() != plain {
        return Err(EntryError::Wrong);
    }
    change(&mut document)?;
    let new = document.to_string();
    Ok(if crlf == 0 { new } else { new.replace('\n', "\r\n") })
}

fn implicit() -> Table {
    let mut table = Table::new();
    table.set_implicit(true);
    table
}

fn values(entry: &Entry) -> impl Iterator<Item = (&'static str, Value)> {
    let args: Array = entry.args.iter().map(String::as_str).collect();
    [("command", Value::from(entry.command.as_str())), ("args", Value::Array(args))].into_iter()
}

fn table(entry: &Entry) -> Item {
    let mut table = Table::new();
    for (name, value) in values(entry) {
        table.insert(name, Item::Value(value));
    }
    Item::Table(table)
}

fn same(there: &dyn TableLike, entry: &Entry) -> bool {
    let args = there.get("args").and_then(Item::as_array);
    let args = args.map(|args| args.iter().map(Value::as_str).collect::<Vec<_>>());
    there.len() == 2
        && there.get("command").and_then(Item::as_str) == Some(&entry.command)
        && args.is_some_and(|args| args == entry.args.iter().map(|arg| Some(arg.as_str())).collect::<Vec<_>>())
}
