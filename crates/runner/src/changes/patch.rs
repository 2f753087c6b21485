//! Parses a patch as git writes it: the files, their sizes, and as much of the text as an event can hold.

use ostler_protocol::kernel::workspaces::{ChangedFile, WorkspaceChanges};

use crate::text_cutter::TextCutter;

/// Escaped bytes of the text. The rest of the event's limit is for the list of files.
const DIFF_BYTES_MAX: usize = 120 * 1024;
const FILES_MAX: usize = 100;
const PATH_CHARS_MAX: usize = 200;
const HEADER: &[u8] = b"diff --git ";

/// Parses a patch. `is_cut` if there was more than could be read.
pub(crate) fn parse(cutter: &TextCutter, patch: &[u8], is_cut: bool) -> WorkspaceChanges {
    let mut changes = WorkspaceChanges { truncated: is_cut, ..WorkspaceChanges::default() };
    let mut file: Option<ChangedFile> = None;
    let mut in_hunk = false;
    for line in patch.split_inclusive(|byte| *byte == b'\n') {
        if let Some(names) = line.strip_prefix(HEADER) {
            changes.add_file(file.take());
            let change = "modified".to_owned();
            file = Some(ChangedFile { path: path_of(cutter, names), change, ..ChangedFile::default() });
            in_hunk = false;
            continue;
        }
        let Some(file) = &mut file else { continue };
        match line.first() {
            Some(b'+') if in_hunk => {
                file.bytes_added += line.len() as i64 - 1;
                changes.lines_added += 1;
            }
            Some(b'-') if in_hunk => {
                file.bytes_removed += line.len() as i64 - 1;
                changes.lines_removed += 1;
            }
            Some(b'@') => in_hunk = true,
            _ if in_hunk => {}
            _ if line.starts_with(b"new file") => file.change = "added".into(),
            _ if line.starts_with(b"deleted file") => file.change = "deleted".into(),
            _ if line.starts_with(b"Binary files") => file.binary = true,
            _ => {}
        }
    }
    changes.add_file(file);
    let patch = without_binaries(cutter, patch);
    let text = String::from_utf8_lossy(&patch);
    let (fits, is_shortened) = cutter.cut_escaped(&text, DIFF_BYTES_MAX);
    changes.truncated |= is_shortened;
    // Only whole lines.
    changes.diff =
        if is_shortened { fits[..fits.rfind('\n').map_or(0, |end| end + 1)].to_owned() } else { fits.into_owned() };
    changes
}

/// Replaces binary files by a comment. Git only states that they differ, which no program accepts as a patch.
fn without_binaries(cutter: &TextCutter, patch: &[u8]) -> Vec<u8> {
    let mut text = vec![];
    for section in sections(patch) {
        let header = section.split_inclusive(|byte| *byte == b'\n').take_while(|line| !line.starts_with(b"@@"));
        let is_binary = header.into_iter().any(|line| line.starts_with(b"Binary files"));
        match section.strip_prefix(HEADER).filter(|_| is_binary) {
            Some(rest) => {
                let names = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
                text.extend(format!("# {}: a binary file, left out\n", path_of(cutter, names)).bytes());
            }
            None => text.extend(section),
        }
    }
    text
}

/// The sections of a patch, one for each file.
fn sections(patch: &[u8]) -> Vec<&[u8]> {
    let (mut sections, mut from, mut at) = (vec![], 0, 0);
    for line in patch.split_inclusive(|byte| *byte == b'\n') {
        if line.starts_with(HEADER) && at > from {
            sections.push(&patch[from..at]);
            from = at;
        }
        at += line.len();
    }
    sections.push(&patch[from..]);
    sections
}

trait AddFile {
    fn add_file(&mut self, file: Option<ChangedFile>);
}

impl AddFile for WorkspaceChanges {
    fn add_file(&mut self, file: Option<ChangedFile>) {
        let Some(file) = file else { return };
        self.files_changed += 1;
        self.bytes_added += file.bytes_added;
        self.bytes_removed += file.bytes_removed;
        if self.files.len() < FILES_MAX {
            self.files.push(file);
        } else {
            self.truncated = true;
        }
    }
}

/// The path in `a/x b/x`. Both names are the same, because renames are not detected.
fn path_of(cutter: &TextCutter, names: &[u8]) -> String {
    let names = names.trim_ascii_end();
    let name = String::from_utf8_lossy(&names[..names.len() / 2]);
    // Git quotes a name with unusual characters.
    let name =
        name.strip_prefix("\"a/").and_then(|name| name.strip_suffix('"')).or(name.strip_prefix("a/")).unwrap_or(&name);
    cutter.cut_name(name, PATH_CHARS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_that_look_like_headers_are_counted() {
        let patch =
            b"diff --git a/x y b/x y\nindex 1..2 100644\n--- a/x y\n+++ b/x y\n@@ -1,2 +1,2 @@\n--- gone\n+++ new\n";
        let changes = parse(&TextCutter::default(), patch, false);
        assert_eq!((changes.files[0].path.as_str(), changes.bytes_added, changes.bytes_removed), ("x y", 7, 8));
    }

    #[test]
    fn a_binary_file_is_named_and_not_counted() {
        let changes = parse(
            &TextCutter::default(),
            b"diff --git a/i.png b/i.png\nnew file mode 100644\nBinary files /dev/null and b/i.png differ\n",
            false,
        );
        let file = &changes.files[0];
        assert_eq!(
            (file.path.as_str(), file.change.as_str(), file.binary, file.bytes_added),
            ("i.png", "added", true, 0)
        );
        assert_eq!(changes.diff, "# i.png: a binary file, left out\n");
    }

    #[test]
    fn a_large_change_stays_within_the_limit_of_an_event() {
        let mut patch = vec![];
        for number in 0..3_000 {
            patch.extend(
                format!("diff --git a/{number}\u{1} b/{number}\u{1}\n@@ -0,0 +1 @@\n+\u{1}\u{2}\"\\\n").bytes(),
            );
        }
        let changes = parse(&TextCutter::default(), &patch, false);
        assert!(changes.truncated && changes.diff.ends_with('\n'));
        assert_eq!((changes.files_changed, changes.files.len()), (3_000, FILES_MAX));
        let size = serde_json::to_string(&changes).unwrap().len();
        assert!(size < ostler_protocol::limits::EVENT_BYTES_MAX, "{size}");
    }
}
