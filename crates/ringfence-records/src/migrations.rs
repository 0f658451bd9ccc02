//! The tables of the database, by numbered steps in both directions. The texts are the same for SQLite and PostgreSQL.

/// One step: what it adds, and how to take it back. Rows of tables that it did not add stay as they are in both directions.
#[derive(Debug)]
pub struct Migration {
    pub version: i64,
    pub name: &'static str,
    pub up: &'static str,
    pub down: &'static str,
}

macro_rules! migration {
    ($version:literal, $name:literal) => {
        Migration {
            version: $version,
            name: $name,
            up: include_str!(concat!("../migrations/000", $version, "_", $name, ".up.sql")),
            down: include_str!(concat!("../migrations/000", $version, "_", $name, ".down.sql")),
        }
    };
}

/// Every step, in order.
pub const ALL: &[Migration] = &[
    migration!(1, "executions"),
    migration!(2, "skills"),
    migration!(3, "skill_hosts"),
    migration!(4, "skill_requirements"),
];

/// What this program works with.
pub fn latest() -> i64 {
    ALL.last().map_or(0, |migration| migration.version)
}
