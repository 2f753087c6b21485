//! What people are shown of the preset scopes, in every language of the program. An agent's own scopes have the texts
//! of its manifest, and never one of ours: a key in a manifest cannot borrow the words of a harmless scope.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::trust::manifest::{Scope, scopes::preset};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    #[default]
    En,
    Zh,
}

impl Language {
    pub const ALL: [Self; 2] = [Self::En, Self::Zh];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::En => "en",
            Self::Zh => "zh",
        }
    }

    /// The language of a locale such as `zh_CN.UTF-8` or `en-GB`; ours where we have no texts in it.
    pub fn of_locale(locale: &str) -> Self {
        let language = locale.split(['_', '-', '.', '@']).next().unwrap_or_default();
        Self::ALL.into_iter().find(|known| known.as_str().eq_ignore_ascii_case(language)).unwrap_or_default()
    }
}

/// The words for one scope.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScopeText {
    pub label: String,
    pub description: String,
}

type Bundle = BTreeMap<String, ScopeText>;

#[expect(clippy::expect_used, reason = "our own bundle reads")]
static BUNDLES: LazyLock<[Bundle; 2]> = LazyLock::new(|| {
    [include_str!("i18n/en.json"), include_str!("i18n/zh.json")]
        .map(|text| serde_json::from_str(text).expect("our own bundle reads"))
});

/// What a scope is called and what it lets an agent do. `None` if there is no text: a bare key is never shown to
/// people.
pub fn scope_text(scope: &Scope, language: Language) -> Option<ScopeText> {
    if preset(&scope.id).is_some() {
        return BUNDLES[language as usize].get(&scope.id).cloned();
    }
    let label = scope.label_fallback.clone()?;
    Some(ScopeText { label, description: scope.description_fallback.clone().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trust::manifest::{Sensitivity, scopes::PRESETS};

    #[test]
    fn every_preset_scope_has_its_words_in_every_language() {
        for (language, bundle) in Language::ALL.into_iter().zip(BUNDLES.iter()) {
            assert_eq!(bundle.len(), PRESETS.len(), "{language:?}");
            for preset in &PRESETS {
                let text = &bundle[preset.id];
                assert!(!text.label.is_empty() && !text.description.is_empty(), "{language:?} {}", preset.id);
            }
        }
        assert_eq!(BUNDLES[Language::Zh as usize]["location:read"].label, "读取位置");
    }

    #[test]
    fn a_scope_of_its_own_cannot_borrow_our_words() {
        let mut scope = Scope {
            id: "shell:exec".into(),
            label_i18n_key: "agent.scope.notification_send.label".into(),
            label_fallback: Some("Run programs".into()),
            description_i18n_key: None,
            description_fallback: Some("Any program, as you.".into()),
            sensitivity: Sensitivity::High,
        };
        assert_eq!(scope_text(&scope, Language::Zh).expect("its own text").label, "Run programs");
        scope.label_fallback = None;
        assert_eq!(scope_text(&scope, Language::En), None);
        scope = Scope { id: "location:read".into(), label_fallback: Some("Nothing at all".into()), ..scope };
        assert_eq!(scope_text(&scope, Language::En).expect("our text").label, "Read your location");
    }

    #[test]
    fn a_locale_selects_the_language() {
        for (locale, language) in [("zh_CN.UTF-8", "zh"), ("zh-Hans", "zh"), ("C", "en"), ("", "en"), ("de_DE", "en")] {
            assert_eq!(Language::of_locale(locale).as_str(), language, "{locale}");
        }
    }
}
