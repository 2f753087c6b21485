//! The run input dialect: attachments of chat messages.

mod attachments;
