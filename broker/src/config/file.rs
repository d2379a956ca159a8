//! The configuration file, checked against the table of settings.

use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::settings::{Form, Setting, Value};
use super::{Config, ConfigError, absolute};

/// Reads one file against the table of settings.
pub(super) struct FileReader<'a> {
    pub(super) path: &'a Path,
    pub(super) text: &'a str,
    pub(super) settings: &'a [Setting],
    pub(super) user_home: Option<&'a Path>,
}

impl FileReader<'_> {
    /// Puts what the file says into `config`.
    pub(super) fn read(&self, config: &mut Config) -> Result<(), ConfigError> {
        let table = DeTable::parse(self.text).map_err(|error| {
            let offset = error.span().map_or(0, |span| span.start);
            let problem = format!("not TOML: {}", error.message());
            self.invalid(offset, problem, "correct the line".to_owned())
        })?;
        self.table("", table.get_ref(), config)
    }

    fn table(
        &self,
        prefix: &str,
        table: &DeTable<'_>,
        config: &mut Config,
    ) -> Result<(), ConfigError> {
        for (key, value) in table {
            let name = match prefix {
                "" => key.get_ref().to_string(),
                prefix => format!("{prefix}.{}", key.get_ref()),
            };
            let inside = format!("{name}.");
            match (
                self.settings.iter().find(|setting| setting.name == name),
                value.get_ref(),
            ) {
                (Some(setting), _) => {
                    let value = self.value(setting, value)?;
                    let origin = self.path.display().to_string();
                    config.values.insert(name, (value, origin));
                }
                (None, DeValue::Table(inner))
                    if self
                        .settings
                        .iter()
                        .any(|setting| setting.name.starts_with(&inside)) =>
                {
                    self.table(&name, inner, config)?;
                }
                _ => return Err(self.unknown(key.span().start, prefix, &name)),
            }
        }
        Ok(())
    }

    fn value(&self, setting: &Setting, value: &Spanned<DeValue<'_>>) -> Result<Value, ConfigError> {
        let wanted = || {
            let wanted = match setting.form {
                Form::Millis(least, most) => {
                    format!("a whole number of milliseconds from {least} to {most}")
                }
                Form::Count(least, most) => format!("a whole number from {least} to {most}"),
                Form::Path => "an absolute path in quotes".to_owned(),
                Form::Words => "a list of strings".to_owned(),
                Form::Choice(words) => format!("one of \"{}\"", words.join("\", \"")),
            };
            let problem = format!("`{}` must be {wanted}", setting.name);
            let remedy = format!("write {wanted}, or remove the line for the default");
            self.invalid(value.span().start, problem, remedy)
        };
        match (setting.form, value.get_ref()) {
            (Form::Millis(least, most) | Form::Count(least, most), DeValue::Integer(number)) => {
                u64::from_str_radix(number.as_str(), number.radix())
                    .ok()
                    .filter(|number| (least..=most).contains(number))
                    .map(Value::Number)
                    .ok_or_else(wanted)
            }
            (Form::Path, DeValue::String(text)) => absolute(Path::new(&**text), self.user_home)
                .map(|path| Value::Path(Some(path)))
                .ok_or_else(wanted),
            (Form::Words, DeValue::Array(items)) => items
                .iter()
                .map(|item| match item.get_ref() {
                    DeValue::String(text) => Some(text.to_string()),
                    _ => None,
                })
                .collect::<Option<_>>()
                .map(Value::Words)
                .ok_or_else(wanted),
            (Form::Choice(words), DeValue::String(text)) => words
                .contains(&&**text)
                .then(|| Value::Word(text.to_string()))
                .ok_or_else(wanted),
            _ => Err(wanted()),
        }
    }

    fn unknown(&self, offset: usize, prefix: &str, name: &str) -> ConfigError {
        let inside = if prefix.is_empty() {
            String::new()
        } else {
            format!("{prefix}.")
        };
        let mut known: Vec<&str> = self
            .settings
            .iter()
            .filter_map(|setting| setting.name.strip_prefix(&inside))
            .map(|rest| rest.split('.').next().unwrap_or(rest))
            .collect();
        known.sort_unstable();
        known.dedup();
        let remedy = format!("remove it, or use one of: {}", known.join(", "));
        self.invalid(offset, format!("`{name}` is not a setting"), remedy)
    }

    fn invalid(&self, offset: usize, problem: String, remedy: String) -> ConfigError {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        ConfigError::Invalid {
            place: format!("{}:{line}", self.path.display()),
            problem,
            remedy,
        }
    }
}
