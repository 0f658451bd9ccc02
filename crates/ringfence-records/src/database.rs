//! One connection to SQLite or PostgreSQL, behind the little that the store needs of either: integers and texts, one
//! statement at a time, transactions. Statements number their parameters `$1`, `$2`, … in the order in which they first
//! appear, which both understand.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use postgres::config::Host;
use postgres::types::{IsNull, ToSql, Type, private::BytesMut, to_sql_checked};

/// How long to wait for a server.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a file that is only read is waited for.
const READ: Duration = Duration::from_millis(100);
/// Guards the tables of PostgreSQL while they are changed or folded into; any number that nobody else uses.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7241952663)";

/// Where the database is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A file of SQLite; made when it is not there.
    File(PathBuf),
    /// The address of a PostgreSQL database.
    Url(String),
}

/// What a database had to say.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the sentence of a variant names what its fields hold")]
pub enum DatabaseError {
    /// The file could not be made.
    #[error("cannot make `{}`: {source}", path.display())]
    Make { path: PathBuf, source: std::io::Error },
    /// Something else than a file has the name of a database of SQLite, or of a file beside one.
    #[error("`{}` is no regular file", .0.display())]
    NotAFile(PathBuf),
    /// SQLite refused.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// PostgreSQL refused, or could not be reached.
    #[error("{}", said(.0))]
    Postgres(#[from] postgres::Error),
    /// The server is another machine, and the connection would not be encrypted.
    #[error("`{0}` is another machine, and the connection would not be encrypted")]
    NotLocal(String),
    /// A row has another type than it should.
    #[error("a row has {0} where something else was expected")]
    Unexpected(&'static str),
}

/// The server's own words, which the error alone leaves out.
fn said(error: &postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(said), _) => said.message().to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

/// A value of a row or of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// No value.
    Null,
    /// A number.
    Integer(i64),
    /// A text.
    Text(String),
}

impl From<i64> for Value {
    fn from(number: i64) -> Value {
        Value::Integer(number)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.to_owned())
    }
}

impl From<String> for Value {
    fn from(text: String) -> Value {
        Value::Text(text)
    }
}

impl<T: Into<Value>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Value {
        value.map_or(Value::Null, Into::into)
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        Ok(match self {
            Value::Null => rusqlite::types::Null.into(),
            Value::Integer(number) => (*number).into(),
            Value::Text(text) => text.as_str().into(),
        })
    }
}

impl ToSql for Value {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Integer(number) => number.to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        matches!(*kind, Type::INT8 | Type::TEXT)
    }

    to_sql_checked!();
}

/// A row, by the order of its columns.
#[derive(Debug)]
pub struct Row(std::vec::IntoIter<Value>);

impl Row {
    /// The next column, which may be nothing.
    pub fn text(&mut self) -> Result<Option<String>, DatabaseError> {
        match self.0.next() {
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(Value::Null) => Ok(None),
            Some(Value::Integer(_)) => Err(DatabaseError::Unexpected("a number")),
            None => Err(DatabaseError::Unexpected("no more columns")),
        }
    }

    /// The next column, which may be nothing.
    pub fn integer(&mut self) -> Result<Option<i64>, DatabaseError> {
        match self.0.next() {
            Some(Value::Integer(number)) => Ok(Some(number)),
            Some(Value::Null) => Ok(None),
            Some(Value::Text(_)) => Err(DatabaseError::Unexpected("a text")),
            None => Err(DatabaseError::Unexpected("no more columns")),
        }
    }
}

/// SQLite opens whatever has the name of a database, or of what it keeps beside one, and would wait for a pipe without end.
fn regular(path: &Path) -> Result<(), DatabaseError> {
    for end in ["", "-journal", "-wal", "-shm"] {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        let path = PathBuf::from(name);
        if path.metadata().is_ok_and(|data| !data.is_file()) {
            return Err(DatabaseError::NotAFile(path));
        }
    }
    Ok(())
}

/// One connection.
pub enum Database {
    /// A file of this host.
    Sqlite(rusqlite::Connection),
    /// A server.
    Postgres(Box<postgres::Client>),
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Database::Sqlite(_) => "SQLite",
            Database::Postgres(_) => "PostgreSQL",
        })
    }
}

impl Database {
    /// An empty one, which is nowhere but here.
    pub fn in_memory() -> Result<Database, DatabaseError> {
        let connection = rusqlite::Connection::open_in_memory()?;
        connection.busy_timeout(READ)?;
        Ok(Database::Sqlite(connection))
    }

    /// Copies the rows that a table has in a file of SQLite, as far as both know their columns. It writes nothing there: one
    /// that needs files beside it which cannot be made is read as it was when it was last closed.
    pub fn take_in(&mut self, path: &Path, table: &str) -> Result<(), DatabaseError> {
        if !path.exists() {
            return Ok(());
        }
        regular(path)?;
        let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-".contains(byte);
        let escaped = |byte: &u8| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02x}") };
        let path: String = path.as_os_str().as_bytes().iter().map(escaped).collect();
        let mut take = |how: &str| {
            self.execute("ATTACH $1 AS there", &[format!("file:{path}?{how}").into()])?;
            let taken = self.take_from_there(table);
            // Nothing is lost with it: the connection is ours alone.
            let _ = self.batch("DETACH there");
            taken
        };
        take("mode=ro").or_else(|_| take("mode=ro&immutable=1"))
    }

    fn take_from_there(&mut self, table: &str) -> Result<(), DatabaseError> {
        let names = "SELECT name FROM pragma_table_info($1, 'there')
                     WHERE name IN (SELECT name FROM pragma_table_info($1, 'main'))";
        let mut columns = Vec::new();
        for mut row in self.query(names, &[table.into()])? {
            columns.extend(row.text()?);
        }
        if columns.is_empty() {
            return Ok(());
        }
        let columns = columns.join(", ");
        self.execute(&format!("INSERT INTO main.{table} ({columns}) SELECT {columns} FROM there.{table}"), &[])?;
        Ok(())
    }

    /// `patience` is how long to wait for somebody else's transaction.
    pub fn open(place: &Place, patience: Duration) -> Result<Database, DatabaseError> {
        match place {
            Place::File(path) => {
                regular(path)?;
                // Made here, since SQLite's own would be readable for everybody; what it puts beside it takes after it.
                let made = std::fs::OpenOptions::new().append(true).create(true).mode(0o600).open(path);
                made.map_err(|source| DatabaseError::Make { path: path.clone(), source })?;
                let connection = rusqlite::Connection::open(path)?;
                connection.busy_timeout(patience)?;
                // Before the first table; the journal is removed once a transaction is on disk, and so it must be there.
                let set_up = || {
                    connection.execute_batch(
                        "PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
                         PRAGMA foreign_keys = ON;",
                    )
                };
                // Of several who open a new one, or close one as the last, SQLite lets none wait for the others at its journal.
                let until = Instant::now() + patience;
                let busy =
                    |error: &rusqlite::Error| error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
                while let Err(error) = set_up() {
                    if !busy(&error) || Instant::now() >= until {
                        return Err(error.into());
                    }
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(Database::Sqlite(connection))
            }
            Place::Url(url) => {
                let mut config: postgres::Config = url.parse()?;
                if let Some(Host::Tcp(name)) = config.get_hosts().iter().find(|host| !is_local(host)) {
                    return Err(DatabaseError::NotLocal(name.clone()));
                }
                if let Some(address) = config.get_hostaddrs().iter().find(|address| !address.is_loopback()) {
                    return Err(DatabaseError::NotLocal(address.to_string()));
                }
                config.connect_timeout(CONNECT).application_name("ringfence");
                let mut client = config.connect(postgres::NoTls)?;
                client.batch_execute(&format!("SET lock_timeout = {}", patience.as_millis().max(1)))?;
                Ok(Database::Postgres(Box::new(client)))
            }
        }
    }

    /// Whether other machines write to the same database.
    pub fn is_shared(&self) -> bool {
        matches!(self, Database::Postgres(_))
    }

    /// Runs statements without parameters.
    pub fn batch(&mut self, statements: &str) -> Result<(), DatabaseError> {
        match self {
            Database::Sqlite(connection) => connection.execute_batch(statements)?,
            Database::Postgres(client) => client.batch_execute(statements)?,
        }
        Ok(())
    }

    /// Runs one statement; how many rows it changed.
    pub fn execute(&mut self, statement: &str, values: &[Value]) -> Result<u64, DatabaseError> {
        match self {
            Database::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(statement)?;
                Ok(statement.execute(rusqlite::params_from_iter(values))? as u64)
            }
            Database::Postgres(client) => {
                let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|v| v as &(dyn ToSql + Sync)).collect();
                Ok(client.execute(statement, &values)?)
            }
        }
    }

    /// All rows of one question.
    pub fn query(&mut self, statement: &str, values: &[Value]) -> Result<Vec<Row>, DatabaseError> {
        match self {
            Database::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(statement)?;
                let columns = statement.column_count();
                let mut rows = statement.query(rusqlite::params_from_iter(values))?;
                let mut out = Vec::new();
                while let Some(row) = rows.next()? {
                    let values: Result<Vec<Value>, DatabaseError> = (0..columns)
                        .map(|column| match row.get_ref(column)? {
                            rusqlite::types::ValueRef::Null => Ok(Value::Null),
                            rusqlite::types::ValueRef::Integer(number) => Ok(Value::Integer(number)),
                            rusqlite::types::ValueRef::Text(text) => {
                                Ok(Value::Text(String::from_utf8_lossy(text).into_owned()))
                            }
                            rusqlite::types::ValueRef::Real(_) => Err(DatabaseError::Unexpected("a fraction")),
                            rusqlite::types::ValueRef::Blob(_) => Err(DatabaseError::Unexpected("bytes")),
                        })
                        .collect();
                    out.push(Row(values?.into_iter()));
                }
                Ok(out)
            }
            Database::Postgres(client) => {
                let values: Vec<&(dyn ToSql + Sync)> = values.iter().map(|v| v as &(dyn ToSql + Sync)).collect();
                let row = |row: postgres::Row| {
                    let values: Result<Vec<Value>, DatabaseError> = (0..row.len())
                        .map(|column| match *row.columns()[column].type_() {
                            Type::INT8 => Ok(row.try_get::<_, Option<i64>>(column)?.into()),
                            Type::TEXT => Ok(row.try_get::<_, Option<String>>(column)?.into()),
                            _ => Err(DatabaseError::Unexpected("another type")),
                        })
                        .collect();
                    Ok(Row(values?.into_iter()))
                };
                client.query(statement, &values)?.into_iter().map(row).collect()
            }
        }
    }

    /// Does everything or nothing of it, while nobody else writes.
    pub fn transaction<T, E: From<DatabaseError>>(
        &mut self,
        act: impl FnOnce(&mut Database) -> Result<T, E>,
    ) -> Result<T, E> {
        let begun = match self {
            Database::Sqlite(_) => self.batch("BEGIN IMMEDIATE"),
            Database::Postgres(_) => self.batch(&format!("BEGIN; {LOCK}")),
        };
        let done = begun.map_err(E::from).and_then(|()| act(self));
        match done.and_then(|done| self.batch("COMMIT").map(|()| done).map_err(E::from)) {
            Ok(done) => Ok(done),
            Err(error) => {
                // The first error counts; a connection that is gone has rolled back by itself.
                let _ = self.batch("ROLLBACK");
                Err(error)
            }
        }
    }
}

/// A socket, or this machine itself.
fn is_local(host: &Host) -> bool {
    match host {
        Host::Unix(_) => true,
        Host::Tcp(name) => {
            name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    }
}
