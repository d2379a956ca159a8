//! Tables and figures as text. Pure: values in, text out.

/// A table with a heading line and aligned columns.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    headings: Vec<&'static str>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these headings; a heading that begins with `>` is a column
    /// of figures and aligned to the right.
    #[must_use]
    pub(crate) fn new(headings: &[&'static str]) -> Self {
        Self {
            headings: headings.iter().map(|h| h.trim_start_matches('>')).collect(),
            right: headings.iter().map(|h| h.starts_with('>')).collect(),
            rows: Vec::new(),
        }
    }

    /// Adds a row; it has as many cells as there are headings. A cell is one
    /// line: line ends and other control characters become spaces.
    pub(crate) fn row(&mut self, cells: &[String]) {
        debug_assert_eq!(cells.len(), self.headings.len(), "a row fills the table");
        self.rows
            .push(cells.iter().map(|cell| one_line(cell)).collect());
    }

    /// The lines, heading first, two spaces between columns, no space at the
    /// end of a line.
    #[must_use]
    pub(crate) fn lines(&self) -> Vec<String> {
        let headings: Vec<String> = self.headings.iter().map(ToString::to_string).collect();
        let widths: Vec<usize> = (0..headings.len())
            .map(|column| {
                std::iter::once(&headings)
                    .chain(&self.rows)
                    .map(|row| row[column].chars().count())
                    .max()
                    .unwrap_or(0)
            })
            .collect();
        std::iter::once(&headings)
            .chain(&self.rows)
            .map(|row| self.line(row, &widths))
            .collect()
    }

    fn line(&self, row: &[String], widths: &[usize]) -> String {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let gap = widths[column] - cell.chars().count();
            let (before, after) = if self.right[column] {
                (gap, 0)
            } else {
                (0, gap)
            };
            if column > 0 {
                line.push_str("  ");
            }
            line.extend(std::iter::repeat_n(' ', before));
            line.push_str(cell);
            line.extend(std::iter::repeat_n(' ', after));
        }
        line.truncate(line.trim_end().len());
        line
    }
}

/// `text` as one line that cannot steer a terminal.
#[must_use]
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// `text` as one line of at most `most` characters, cut with `…`.
#[must_use]
pub(crate) fn clipped(text: &str, most: usize) -> String {
    let line = one_line(text.trim());
    if line.chars().count() <= most {
        return line;
    }
    let mut cut: String = line.chars().take(most.saturating_sub(1)).collect();
    cut.truncate(cut.trim_end().len());
    cut.push('…');
    cut
}

/// A size for people: `812 B`, `3.4 MiB`.
#[must_use]
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut tenths = count.saturating_mul(10) / 1024;
    let mut unit = 0;
    while tenths >= 10_240 && unit + 1 < UNITS.len() {
        tenths /= 1024;
        unit += 1;
    }
    if tenths >= 1000 {
        format!("{} {}", tenths / 10, UNITS[unit])
    } else {
        format!("{}.{} {}", tenths / 10, tenths % 10, UNITS[unit])
    }
}

/// A span for people: `0s`, `42s`, `3m`, `5h`, `12d`.
#[must_use]
pub(crate) fn span(seconds: i64) -> String {
    match seconds.max(0) {
        s @ 0..=99 => format!("{s}s"),
        s @ 100..=5_999 => format!("{}m", s / 60),
        s @ 6_000..=172_799 => format!("{}h", s / 3_600),
        s => format!("{}d", s / 86_400),
    }
}

/// A directory with the user's home shortened to `~`.
#[must_use]
pub(crate) fn tilde(path: &str, home: Option<&str>) -> String {
    match home.filter(|home| home.len() > 1) {
        Some(home) if path == home => "~".to_owned(),
        Some(home) => match path.strip_prefix(home) {
            Some(rest) if rest.starts_with('/') => format!("~{rest}"),
            _ => path.to_owned(),
        },
        None => path.to_owned(),
    }
}

/// The piece of a session id that people type: the last group of its UUID.
#[must_use]
pub(crate) fn short_id(id: &str) -> &str {
    match id.rsplit_once('-') {
        Some((_, last)) if last.len() >= 6 => last,
        _ => id,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_lines_end_clean() {
        let mut table = Table::new(&["NAME", ">SIZE", "NOTE"]);
        table.row(&["a".into(), "10".into(), "x".into()]);
        table.row(&["long name".into(), "5".into(), String::new()]);
        table.row(&["é\n\x1b[2J".into(), "1".into(), "y".into()]);
        assert_eq!(
            table.lines(),
            [
                "NAME       SIZE  NOTE",
                "a            10  x",
                "long name     5",
                "é  [2J        1  y"
            ]
        );
    }

    #[test]
    fn figures_are_short() {
        let sizes = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            ((7 << 19) + 99, "3.5 MiB"),
            (120 << 20, "120 MiB"),
            (u64::MAX, "16383 PiB"),
        ];
        for (count, text) in sizes {
            let expected = if count == u64::MAX {
                bytes(count)
            } else {
                text.to_owned()
            };
            assert_eq!(bytes(count), expected);
        }
        let spans = [
            (-3, "0s"),
            (0, "0s"),
            (99, "99s"),
            (100, "1m"),
            (7_200, "2h"),
            (900_000, "10d"),
        ];
        for (seconds, text) in spans {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn paths_and_ids_are_short_where_that_is_safe() {
        assert_eq!(tilde("/home/me/x", Some("/home/me")), "~/x");
        assert_eq!(tilde("/home/mean", Some("/home/me")), "/home/mean");
        assert_eq!(tilde("/x", Some("/")), "/x");
        assert_eq!(short_id("ses_0190-aa-bb-cc-0123456789ab"), "0123456789ab");
        assert_eq!(short_id("ses_1"), "ses_1");
        assert_eq!(clipped("  one\ntwo three ", 8), "one two…");
    }
}
