//! How things are printed, and how a person at a terminal is asked. Knows no command: everything here takes values and
//! writes text. Only [`output`] writes to stdout and stderr.

pub(crate) mod amounts;
pub(crate) mod confirm;
pub(crate) mod events;
pub(crate) mod frame_view;
pub(crate) mod jq;
mod jq_functions;
pub(crate) mod list_output;
pub(crate) mod output;
pub(crate) mod output_flags;
pub(crate) mod paint;
pub(crate) mod permissions;
pub(crate) mod pods;
pub(crate) mod progress_bar;
pub(crate) mod repaint;
pub(crate) mod screen;
pub(crate) mod secret_input;
pub(crate) mod shell_words;
pub(crate) mod status;
pub(crate) mod table;
pub(crate) mod times;
pub(crate) mod turn_view;
pub(crate) mod typed_lines;
