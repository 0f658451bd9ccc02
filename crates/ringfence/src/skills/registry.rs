//! The registry: skills in the database of the records, and their executions.
//!
//! Versions are kept until they are removed, and none ever changes its code. What is read is checked against its hash: a
//! database that somebody wrote to is not believed. A version that cannot be believed hides no other.

use ringfence_policy::layers::content_hash;

use super::scan::{Finding, Scan, Verdict};
use super::{New, Scanner, Schema, Skill, SkillError, Source, Unreadable};
use crate::code::requirements::Requirements;
use crate::code::{Language, MAX_SOURCE};
use crate::records::database::{Database, DatabaseError, Row, Value};
use crate::records::{Filter, Place, Record, Store, now};

/// Most characters of a name or a version.
const LONGEST: usize = 64;

/// All registered skills.
#[derive(Debug)]
pub struct Registry {
    store: Store,
}

/// Skills, and the versions that cannot be believed.
#[derive(Debug, Clone, serde::Serialize)]
pub struct Listed {
    /// Those that can be read.
    pub skills: Vec<Skill>,
    /// Those that cannot.
    pub unreadable: Vec<Unreadable>,
}

impl Listed {
    fn of(rows: Vec<Result<Skill, Unreadable>>) -> Listed {
        let (mut skills, mut unreadable) = (Vec::new(), Vec::new());
        rows.into_iter().for_each(|row| match row {
            Ok(skill) => skills.push(skill),
            Err(row) => unreadable.push(row),
        });
        Listed { skills, unreadable }
    }
}

/// Versions that something was done to.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Changed {
    /// The skill.
    pub name: String,
    /// The latest first.
    pub versions: Vec<Version>,
    /// How many other versions the skill has, to which nothing was done.
    pub others: u64,
}

/// One version, without what is in it.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Version {
    /// The version.
    pub version: String,
    /// The hash of its code.
    pub hash: String,
}

/// So many digits of a hash say which one is meant.
const SHORTEST_HASH: usize = 6;

/// A skill by its name, or one version of it: `name`, `name@version` or `name@sha256:…`, of which the beginning will do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Which {
    /// The name of the skill.
    pub name: String,
    /// A version, or a hash.
    pub version: Option<String>,
}

impl Which {
    /// Reads `name` or `name@version`.
    pub fn parse(text: &str) -> Which {
        match text.split_once('@').filter(|(name, _)| !name.is_empty()) {
            Some((name, version)) => Which { name: name.to_owned(), version: Some(version.to_owned()) },
            None => Which { name: text.to_owned(), version: None },
        }
    }

    fn missing(&self) -> SkillError {
        match &self.version {
            Some(version) => SkillError::NoVersion { name: self.name.clone(), version: version.clone() },
            None => SkillError::NoSkill(self.name.clone()),
        }
    }

    /// As a condition, with its values.
    fn condition(&self) -> (&'static str, Vec<Value>) {
        match &self.version {
            Some(version) => (
                "skills.name = $1 AND (skills.version = $2 OR skills.hash = $2)",
                vec![self.name.as_str().into(), version.as_str().into()],
            ),
            None => ("skills.name = $1", vec![self.name.as_str().into()]),
        }
    }
}

impl Registry {
    /// Opens the database and brings its tables up to date.
    pub fn open(place: &Place) -> Result<Registry, SkillError> {
        Ok(Registry { store: Store::open(place)? })
    }

    /// The registry in a database that is open.
    pub fn of(store: Store) -> Registry {
        Registry { store }
    }

    /// Scans a skill and registers it. The same once more changes nothing, unless another version is asked for.
    pub fn add(&mut self, new: &New, scanner: &Scanner) -> Result<Skill, SkillError> {
        check(new)?;
        let hash = content_hash(new.code.as_bytes());
        let mut new = new.clone();
        let mut known = self.versions(&Which { name: new.name.clone(), version: None })?.skills;
        match known.iter().position(|skill| skill.hash == hash) {
            // The same code again: what was declared for it, and is not said now, stays.
            Some(same) => {
                let same = known.swap_remove(same);
                new.inputs = new.inputs.or(same.inputs);
                if new.hosts.is_empty() {
                    new.hosts = same.hosts;
                }
            }
            // Other code has the inputs of the version before. Which hosts it reaches is to be looked at anew.
            None => new.inputs = new.inputs.or(known.into_iter().next().and_then(|before| before.inputs)),
        }
        // Under whatever name: what is known to come from nobody knows whom is not made trusted by adding it again.
        let anywhere = Listed::of(self.select("skills.hash = $1", &[hash.as_str().into()])?).skills;
        if let Some(skill) = anywhere.into_iter().find(|skill| skill.source == Source::Community) {
            match new.source {
                Some(Source::Local | Source::Cloud) => {
                    return Err(SkillError::OfTheCommunity { name: skill.name, version: skill.version });
                }
                Some(Source::Community) | None if !new.sandbox_required => return Err(SkillError::SandboxRequired),
                Some(Source::Community) | None => new.source = Some(Source::Community),
            }
        }
        let scan = scanner.scan(new.language, &new.code, &new.hosts)?;
        let version = self.store.database().transaction(|database| insert(database, &new, &hash, &scan))?;
        self.find(&Which { name: new.name, version: Some(version) })
    }

    /// The latest version, or the one that is named.
    pub fn find(&mut self, which: &Which) -> Result<Skill, SkillError> {
        let which = &self.whole(which)?;
        let (condition, values) = which.condition();
        let found = self.select(condition, &values)?;
        Ok(found.into_iter().next().ok_or_else(|| which.missing())??)
    }

    /// All versions, the latest first.
    pub fn versions(&mut self, which: &Which) -> Result<Listed, SkillError> {
        let (condition, values) = self.whole(which)?.condition();
        Ok(Listed::of(self.select(condition, &values)?))
    }

    /// The latest version of each skill, by name.
    pub fn list(&mut self) -> Result<Listed, SkillError> {
        let mut all = self.select("1 = 1", &[])?;
        let name = |row: &Result<Skill, Unreadable>| match row {
            Ok(skill) => skill.name.clone(),
            Err(row) => row.name.clone(),
        };
        all.dedup_by(|later, first| name(later) == name(first));
        Ok(Listed::of(all))
    }

    /// Scans again: the rules may have changed since.
    pub fn rescan(&mut self, which: &Which, scanner: &Scanner) -> Result<Skill, SkillError> {
        let skill = self.find(which)?;
        let scan = scanner.scan(skill.known_language()?, &skill.code, &skill.hosts)?;
        let values = [
            scan.verdict.name().into(),
            findings(&scan).into(),
            now().into(),
            skill.name.as_str().into(),
            skill.version.as_str().into(),
        ];
        let update = "UPDATE skills SET verdict = $1, findings = $2, scanned = $3 WHERE name = $4 AND version = $5";
        self.store.database().execute(update, &values)?;
        self.find(&Which { name: skill.name, version: Some(skill.version) })
    }

    /// Lets a skill run no more, or again: all versions, or the one that is named.
    pub fn set_disabled(&mut self, which: &Which, disabled: bool) -> Result<Changed, SkillError> {
        self.change(which, &format!("UPDATE skills SET disabled = {}", i64::from(disabled)))
    }

    /// Removes all versions, or the one that is named, and code that nothing refers to any more. Its executions stay.
    pub fn remove(&mut self, which: &Which) -> Result<Changed, SkillError> {
        let removed = self.change(which, "DELETE FROM skills")?;
        let orphans = "DELETE FROM skill_code WHERE hash NOT IN (SELECT hash FROM skills)";
        self.store.database().transaction(|database| database.execute(orphans, &[]).map_err(SkillError::from))?;
        Ok(removed)
    }

    /// What ran of a skill, the latest first, also of one that was removed.
    pub fn executions(&mut self, name: &str, limit: Option<u64>) -> Result<Vec<Record>, SkillError> {
        let filter = Filter { skill: Some(name.to_owned()), limit, ..Filter::default() };
        let mut records = self.store.list(&filter)?;
        // A box of one execution has the id of that.
        for record in records.iter_mut().filter(|record| record.sandbox.is_none()) {
            record.sandbox = Some(record.id.clone());
        }
        Ok(records)
    }

    /// With the whole hash, where the beginning of one is named and there is no such version.
    fn whole(&mut self, which: &Which) -> Result<Which, SkillError> {
        let Some(version) = &which.version else { return Ok(which.clone()) };
        let digits = version.strip_prefix("sha256:").unwrap_or(version);
        if !is_hash_prefix(digits) {
            return Ok(which.clone());
        }
        let query = "SELECT version, hash FROM skills WHERE name = $1";
        let rows = self.store.database().query(query, &[which.name.as_str().into()])?;
        let mut hashes = std::collections::BTreeSet::new();
        for mut row in rows {
            let mut text = || row.text().map(Option::unwrap_or_default);
            let (named, hash) = (text()?, text()?);
            if named == *version {
                return Ok(which.clone());
            }
            if hash.strip_prefix("sha256:").is_some_and(|hash| hash.starts_with(digits)) {
                hashes.insert(hash);
            }
        }
        if hashes.len() > 1 {
            return Err(SkillError::Ambiguous { name: which.name.clone(), hash: version.clone() });
        }
        let version = hashes.pop_first().unwrap_or_else(|| version.clone());
        Ok(Which { name: which.name.clone(), version: Some(version) })
    }

    fn change(&mut self, which: &Which, what: &str) -> Result<Changed, SkillError> {
        let which = &self.whole(which)?;
        let (condition, values) = which.condition();
        let statement = format!("{what} WHERE {condition} RETURNING version, hash, added");
        let (mut rows, all) = self.store.database().transaction(|database| {
            let of = "SELECT COUNT(*) FROM skills WHERE name = $1";
            let all = database.query(of, &values[..1])?.first_mut().map(Row::integer).transpose()?.flatten();
            let rows = database.query(&statement, &values)?.into_iter().map(|mut row| {
                let mut text = || row.text().map(Option::unwrap_or_default);
                let version = Version { version: text()?, hash: text()? };
                Ok((row.integer()?.unwrap_or(0), version))
            });
            Ok::<_, SkillError>((rows.collect::<Result<Vec<_>, DatabaseError>>()?, all.unwrap_or(0)))
        })?;
        if rows.is_empty() {
            return Err(which.missing());
        }
        rows.sort_by_key(|(added, _)| std::cmp::Reverse(*added));
        let others = u64::try_from(all).unwrap_or(0).saturating_sub(rows.len() as u64);
        let versions = rows.into_iter().map(|(_, version)| version).collect();
        Ok(Changed { name: which.name.clone(), versions, others })
    }

    /// By name, the latest first.
    fn select(&mut self, condition: &str, values: &[Value]) -> Result<Vec<Result<Skill, Unreadable>>, SkillError> {
        let statement = format!(
            "SELECT skills.name, skills.version, skills.hash, skill_code.language, skills.source, skills.sandbox_required,
                 skills.disabled, skills.added, skills.inputs, skills.hosts, skills.verdict, skills.findings,
                 skills.scanned, skill_code.code, skills.requirements
             FROM skills JOIN skill_code ON skill_code.hash = skills.hash
             WHERE {condition} ORDER BY skills.name, skills.added DESC"
        );
        let rows = self.store.database().query(&statement, values)?;
        rows.into_iter()
            .map(|row| match skill(row) {
                Ok(skill) => Ok(Ok(skill)),
                Err(SkillError::Corrupt(row)) => Ok(Err(row)),
                Err(error) => Err(error),
            })
            .collect()
    }
}

/// Whether a text could be the beginning of a hash.
fn is_hash_prefix(text: &str) -> bool {
    text.len() >= SHORTEST_HASH && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn check(new: &New) -> Result<(), SkillError> {
    let New { name, version, language: _, code, source, requirements: _, inputs: _, hosts, sandbox_required } = new;
    if !is_word(name, "._-") {
        return Err(SkillError::Name(name.clone()));
    }
    if let Some(version) = version.as_ref().filter(|version| !is_word(version, "._-+")) {
        return Err(SkillError::Version(version.clone()));
    }
    if let Some(version) = version.as_ref().filter(|version| is_hash_prefix(version)) {
        return Err(SkillError::VersionIsHash(version.clone()));
    }
    if code.len() > MAX_SOURCE {
        return Err(SkillError::TooLarge(code.len()));
    }
    if code.contains('\0') {
        return Err(SkillError::Nul);
    }
    check_hosts(hosts)?;
    if *source == Some(Source::Community) && !sandbox_required {
        return Err(SkillError::SandboxRequired);
    }
    Ok(())
}

/// Whether they can be declared.
pub fn check_hosts(hosts: &[String]) -> Result<(), SkillError> {
    match hosts.iter().find(|host| !is_word(host.strip_prefix("*.").unwrap_or(host), "._-:")) {
        Some(host) => Err(SkillError::Host(host.clone())),
        None => Ok(()),
    }
}

fn is_word(text: &str, also: &str) -> bool {
    (1..=LONGEST).contains(&text.len())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

/// Puts one in. Its version.
fn insert(database: &mut Database, new: &New, hash: &str, scan: &Scan) -> Result<String, SkillError> {
    let known = "SELECT version, hash, requirements, source, added FROM skills WHERE name = $1 ORDER BY added DESC";
    let mut versions = Vec::new();
    let (mut latest, mut source) = (0, new.source);
    for mut row in database.query(known, &[new.name.as_str().into()])? {
        let mut text = || row.text().map(Option::unwrap_or_default);
        let version = text()?;
        // What a version is: its code, and what it runs with.
        let content = (text()?, text()?);
        source = source.or(Source::from_name(&text()?));
        latest = latest.max(row.integer()?.unwrap_or(0));
        versions.push((version, content));
    }
    let source = source.unwrap_or(Source::Local);
    if source == Source::Community && !new.sandbox_required {
        return Err(SkillError::SandboxRequired);
    }
    let requirements = new.requirements.as_ref().map(|wanted| serde_json::json!(wanted).to_string());
    let content = (hash.to_owned(), requirements.clone().unwrap_or_default());
    let version = match &new.version {
        Some(version) => version.clone(),
        // The same code again is the same version.
        None => match versions.first().filter(|(_, known)| *known == content) {
            Some((version, ..)) => version.clone(),
            None => {
                // `11` after `10.2`.
                let first = |version: &str| version.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok();
                let numbers = versions.iter().filter_map(|(version, ..)| first(version));
                numbers.max().unwrap_or(0).saturating_add(1).to_string()
            }
        },
    };
    let here = versions.iter().find(|(known, ..)| *known == version);
    if here.is_some_and(|(_, known)| *known != content) {
        return Err(SkillError::VersionTaken { name: new.name.clone(), version });
    }
    let code =
        "INSERT INTO skill_code (hash, language, code, added) VALUES ($1, $2, $3, $4) ON CONFLICT (hash) DO NOTHING";
    let values = [hash.into(), new.language.name.into(), new.code.as_str().into(), now().into()];
    database.execute(code, &values)?;
    for mut row in database.query("SELECT language FROM skill_code WHERE hash = $1", &[hash.into()])? {
        let language = row.text()?.unwrap_or_default();
        if language != new.language.name {
            return Err(SkillError::OtherLanguage(language));
        }
    }
    // What is said about a version can change; its code cannot, and neither does it run again because it is added again.
    database
        .execute(
            "INSERT INTO skills (name, version, hash, source, inputs, hosts, verdict, findings, scanned, sandbox_required,
                 added, requirements)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
             ON CONFLICT (name, version) DO UPDATE SET
                 source = excluded.source, inputs = excluded.inputs, hosts = excluded.hosts, verdict = excluded.verdict,
                 findings = excluded.findings, scanned = excluded.scanned, sandbox_required = excluded.sandbox_required",
            &[
                new.name.as_str().into(),
                version.as_str().into(),
                hash.into(),
                source.name().into(),
                new.inputs.as_ref().map(ToString::to_string).into(),
                serde_json::json!(new.hosts).to_string().into(),
                scan.verdict.name().into(),
                findings(scan).into(),
                now().into(),
                i64::from(new.sandbox_required).into(),
                // Later than any other version, also in the same millisecond.
                now().max(latest.saturating_add(1)).into(),
                requirements.into(),
            ],
        )?;
    Ok(version)
}

/// What is kept of a scan beside its verdict.
fn findings(scan: &Scan) -> String {
    serde_json::json!({ "findings": scan.findings, "truncated": scan.truncated }).to_string()
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Findings {
    Kept {
        findings: Vec<Finding>,
        truncated: bool,
    },
    /// As they were written at first.
    Plain(Vec<Finding>),
}

fn skill(mut row: Row) -> Result<Skill, SkillError> {
    let text = |row: &mut Row| -> Result<String, DatabaseError> { row.text().map(Option::unwrap_or_default) };
    let name = text(&mut row)?;
    let version = text(&mut row)?;
    let hash = text(&mut row)?;
    let corrupt = |what| Unreadable { name: name.clone(), version: version.clone(), hash: hash.clone(), what };
    let language = text(&mut row)?;
    let source = text(&mut row)?;
    let source = Source::from_name(&source).ok_or_else(|| corrupt("source"))?;
    let mut number = || row.integer().map(|number| number.unwrap_or(0));
    let (sandbox_required, disabled, added) = (number()? != 0, number()? != 0, number()?);
    let inputs = row.text()?;
    let inputs = inputs.map(|text| Schema::parse(&text, "inputs")).transpose().map_err(|_| corrupt("inputs"))?;
    let hosts = row.text()?.map(|text| serde_json::from_str(&text)).transpose();
    let hosts = hosts.map_err(|_| corrupt("hosts"))?.unwrap_or_default();
    let verdict = row.text()?.map(|name| Verdict::from_name(&name).ok_or_else(|| corrupt("verdict")));
    let kept = row.text()?.map(|text| serde_json::from_str(&text)).transpose();
    let (findings, truncated) = match kept.map_err(|_| corrupt("findings"))? {
        Some(Findings::Kept { findings, truncated }) => (findings, truncated),
        Some(Findings::Plain(findings)) => (findings, false),
        None => (Vec::new(), false),
    };
    let scan = verdict.transpose()?.map(|verdict| Scan { verdict, findings, truncated });
    let scanned = row.integer()?;
    let code = text(&mut row)?;
    if content_hash(code.as_bytes()) != hash {
        return Err(corrupt("code").into());
    }
    let known = Language::named(&language);
    let requirements = row.text()?.map(|text| {
        let wanted: Requirements = serde_json::from_str(&text).map_err(|_| corrupt("requirements"))?;
        let language = known.ok_or_else(|| corrupt("requirements"))?;
        wanted.checked(language).map_err(|_| corrupt("requirements"))
    });
    let requirements = requirements.transpose()?;
    let language = known.map_or(language, |known| known.name.to_owned());
    Ok(Skill {
        name,
        version,
        hash,
        language,
        source,
        // Whatever the table says.
        sandbox_required: sandbox_required || source == Source::Community,
        disabled,
        added,
        inputs,
        hosts,
        requirements,
        scan,
        scanned,
        code,
    })
}
