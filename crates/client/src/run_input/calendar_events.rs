//! The caller's calendar: create, get, list, update and delete events, list occurrences, export.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    run_input::calendar::{
        CalendarEvent, CalendarEventPage, CalendarOccurrences, CreateCalendarEvent, ListCalendarEvents,
        ListOccurrences, UpdateCalendarEvent,
    },
};

use crate::{client::Client, path::Path};

const NOUN: &str = "calendar-events";

impl Client {
    pub async fn create_calendar_event(&self, event: &CreateCalendarEvent) -> Result<CalendarEvent, Failure> {
        self.post(Path::api(&[NOUN]), event).await
    }

    pub async fn get_calendar_event(&self, id: &str) -> Result<CalendarEvent, Failure> {
        self.get(Path::api(&[NOUN, id])).await
    }

    pub async fn list_calendar_events(&self, query: &ListCalendarEvents) -> Result<CalendarEventPage, Failure> {
        self.get(Path::api(&[NOUN]).query(query)?).await
    }

    pub async fn list_occurrences(&self, query: &ListOccurrences) -> Result<CalendarOccurrences, Failure> {
        self.get(Path::api(&[NOUN, "occurrences"]).query(query)?).await
    }

    /// The calendar as iCalendar text.
    pub async fn export_calendar(&self) -> Result<Bytes, Failure> {
        self.call(Method::GET, Path::api(&[NOUN, "export"]), Bytes::new()).await
    }

    pub async fn update_calendar_event(
        &self,
        id: &str,
        change: &UpdateCalendarEvent,
    ) -> Result<CalendarEvent, Failure> {
        self.patch(Path::api(&[NOUN, id]), change).await
    }

    pub async fn delete_calendar_event(&self, id: &str) -> Result<(), Failure> {
        self.call(Method::DELETE, Path::api(&[NOUN, id]), Bytes::new()).await.map(drop)
    }
}
