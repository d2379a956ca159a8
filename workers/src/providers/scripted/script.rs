//! The steps of a script, one a line.

use std::time::Duration;

/// One step. What each does is written in [`super::turn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// `!emit TEXT`
    Emit(String),
    /// `!words N MS`
    Words(u64, Duration),
    /// `!clock N MS`
    Clock(u64, Duration),
    /// `!delay MS`
    Delay(Duration),
    /// `!card TITLE | MESSAGE [| TOOLNAME]`
    Card {
        /// Heading of the card.
        title: String,
        /// Its question.
        message: String,
        /// The tool that wants to run.
        tool: String,
    },
    /// `!ask QUESTION | a,b,c`
    Ask(String, Vec<String>),
    /// `!secret QUESTION`
    Secret(String),
    /// `!hang`, and `!hang-once` without a recovery.
    Hang,
    /// `!crash CODE`
    Crash(i32),
    /// `!kill`
    Kill,
    /// `!noise TEXT`
    Noise(String),
    /// `!half`
    Half,
    /// `!bad-utf8`
    BadUtf8,
    /// `!malformed N`
    Malformed(u64),
    /// `!ignore-term`
    IgnoreTerm,
    /// `!child SECS`
    Child(u64),
    /// `!grandchild SECS`
    Grandchild(u64),
    /// `!stderr N`
    Stderr(u64),
    /// `!events N SIZE`
    Events(u64, usize),
    /// `!error TEXT`
    Error(String),
    /// `!stale-token`: the turn fails as one does whose login token has expired.
    StaleToken,
    /// `!forget`: the agent is not there any more when it is to be resumed.
    Forget,
    /// `!slow-abort MS [TEXT]`: from now on an abort is answered so much later,
    /// behind a last word where there is one.
    SlowAbort(Duration, String),
    /// `!env NAME`
    Env(String),
    /// `!tool NAME TEXT`
    Tool(String, String),
    /// `!reasoning TEXT`
    Reasoning(String),
    /// `!usage`
    Usage,
    /// `!long-tool MS`
    LongTool(Duration),
    /// `!turnless`
    Turnless,
    /// `!stop-reading`
    StopReading,
    /// `!steers unread|unread-silent|late|unread-late`: what this turn does with
    /// messages for it. It takes them and reads none; it answers them only behind its
    /// own end.
    Steers {
        /// None is read.
        unread: bool,
        /// Nothing is said of it.
        silent: bool,
        /// The answers are late.
        late: bool,
    },
    /// `!answer`: the late answers are given now.
    Answer,
    /// `!recall`
    Recall,
    /// `!file TEXT`: an answer in the session file of which nothing is told.
    File(String),
    /// A step of a name that ends in `-once`, in a turn that is a recovery.
    Skipped,
}

/// The steps of a prompt, or `None` when it is no script. An unknown step is an
/// error that names it.
pub(super) fn parse(prompt: &str, recovery: bool) -> Option<Result<Vec<Step>, String>> {
    let lines: Vec<&str> = prompt
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    if lines.is_empty() || !lines.iter().all(|line| line.starts_with('!')) {
        return None;
    }
    Some(
        lines
            .iter()
            .map(|line| step(&line[1..], recovery))
            .collect(),
    )
}

fn step(line: &str, recovery: bool) -> Result<Step, String> {
    let (name, rest) = line.split_once(' ').unwrap_or((line, ""));
    let rest = rest.trim_start();
    let bad = || format!("the step !{line} can't be read");
    let number = |index: usize| -> Result<u64, String> {
        rest.split_whitespace()
            .nth(index)
            .and_then(|word| word.parse().ok())
            .ok_or_else(bad)
    };
    let millis = |index: usize| number(index).map(Duration::from_millis);
    let text = || rest.to_owned();
    let (name, once) = match name.strip_suffix("-once") {
        Some(name) => (name, true),
        None => (name, false),
    };
    let step = match name {
        "emit" => Step::Emit(text()),
        "words" => Step::Words(number(0)?, millis(1)?),
        "clock" => Step::Clock(number(0)?, millis(1)?),
        "delay" => Step::Delay(millis(0)?),
        "card" => card(rest).ok_or_else(bad)?,
        "ask" => {
            let (question, options) = rest.split_once('|').ok_or_else(bad)?;
            let options = options
                .split(',')
                .map(|option| option.trim().to_owned())
                .collect();
            Step::Ask(question.trim().to_owned(), options)
        }
        "secret" => Step::Secret(text()),
        "hang" => Step::Hang,
        "crash" => Step::Crash(i32::try_from(number(0)?).map_err(|_| bad())?),
        "kill" => Step::Kill,
        "noise" => Step::Noise(text()),
        "half" => Step::Half,
        "bad-utf8" => Step::BadUtf8,
        "malformed" => Step::Malformed(number(0)?),
        "ignore-term" => Step::IgnoreTerm,
        "child" => Step::Child(number(0)?),
        "grandchild" => Step::Grandchild(number(0)?),
        "stderr" => Step::Stderr(number(0)?),
        "events" => Step::Events(number(0)?, usize::try_from(number(1)?).map_err(|_| bad())?),
        "error" => Step::Error(text()),
        "stale-token" => Step::StaleToken,
        "forget" => Step::Forget,
        "slow-abort" => {
            let word = rest.split_once(' ').map_or("", |(_, word)| word);
            Step::SlowAbort(millis(0)?, word.to_owned())
        }
        "env" => Step::Env(text()),
        "tool" => {
            let (tool, text) = rest.split_once(' ').ok_or_else(bad)?;
            Step::Tool(tool.to_owned(), text.to_owned())
        }
        "reasoning" => Step::Reasoning(text()),
        "usage" => Step::Usage,
        "long-tool" => Step::LongTool(millis(0)?),
        "turnless" => Step::Turnless,
        "stop-reading" => Step::StopReading,
        "steers" => Step::Steers {
            unread: rest.starts_with("unread"),
            silent: rest.ends_with("silent"),
            late: rest.ends_with("late"),
        },
        "answer" => Step::Answer,
        "recall" => Step::Recall,
        "file" => Step::File(text()),
        _ => return Err(format!("there is no step !{name}")),
    };
    Ok(if once && recovery {
        Step::Skipped
    } else {
        step
    })
}

fn card(rest: &str) -> Option<Step> {
    let mut parts = rest.split('|').map(|part| part.trim().to_owned());
    Some(Step::Card {
        title: parts.next().filter(|title| !title.is_empty())?,
        message: parts.next()?,
        tool: parts.next().unwrap_or_else(|| "bash".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Step {
        parse(line, false).unwrap().unwrap().remove(0)
    }

    #[test]
    fn only_lines_of_steps_are_a_script() {
        assert!(parse("hello", false).is_none());
        assert!(parse("", false).is_none());
        assert!(parse("!emit a\nb", false).is_none());
        assert_eq!(
            parse("!emit a\n\n!hang\n", false).unwrap().unwrap().len(),
            2
        );
        assert!(parse("!fly", false).unwrap().unwrap_err().contains("!fly"));
        assert!(parse("!delay soon", false).unwrap().is_err());
    }

    #[test]
    fn steps_have_their_parts() {
        assert_eq!(
            one("!words 3 10"),
            Step::Words(3, Duration::from_millis(10))
        );
        assert_eq!(
            one("!ask Which? | a, b"),
            Step::Ask("Which?".into(), vec!["a".into(), "b".into()])
        );
        let card = Step::Card {
            title: "T".into(),
            message: "M m".into(),
            tool: "edit".into(),
        };
        assert_eq!(one("!card T | M m | edit"), card);
        assert!(matches!(one("!card T | M"), Step::Card { tool, .. } if tool == "bash"));
        assert_eq!(one("!crash 7"), Step::Crash(7));
    }

    #[test]
    fn once_means_not_in_a_recovery() {
        assert_eq!(one("!hang-once"), Step::Hang);
        let steps = parse("!hang-once\n!crash-once 3\n!kill-once\n!hang", true)
            .unwrap()
            .unwrap();
        assert_eq!(
            steps,
            [Step::Skipped, Step::Skipped, Step::Skipped, Step::Hang]
        );
    }
}
