//! The providers that a key alone sets up. Their models are called with the protocol of OpenAI.

use super::{
    AuthBaseUrlOption, AuthBaseUrls, AuthProviderDescriptor, AuthProviderGroupEntry, AuthProviderModel, OPENAI_PROTOCOL,
};

/// A provider of the catalog.
#[derive(Debug)]
pub struct AuthProvider {
    pub id: &'static str,
    pub label: &'static str,
    pub group: AuthProviderGroup,
    /// Its servers; the first one is the default. None if the client names the server.
    pub base_urls: &'static [BaseUrl],
    pub models: &'static [&'static str],
    pub documentation_url: Option<&'static str>,
}

/// A server of a provider.
#[derive(Debug)]
pub struct BaseUrl {
    pub id: &'static str,
    pub label: &'static str,
    pub url: &'static str,
}

/// How clients group providers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuthProviderGroup {
    Alibaba,
    ThirdParty,
    Custom,
}

/// The short name of the custom provider.
pub(super) const CUSTOM: &str = "custom";

const fn server(url: &'static str) -> BaseUrl {
    BaseUrl { id: "default", label: "Default", url }
}

const fn region(id: &'static str, label: &'static str, url: &'static str) -> BaseUrl {
    BaseUrl { id, label, url }
}

pub const AUTH_PROVIDERS: &[AuthProvider] = &[
    AuthProvider {
        id: "coding-plan",
        label: "Alibaba Coding Plan",
        group: AuthProviderGroup::Alibaba,
        base_urls: &[
            region("aliyun", "China (Beijing)", "https://coding.dashscope.aliyuncs.com/v1"),
            region("alibabacloud", "Singapore", "https://coding-intl.dashscope.aliyuncs.com/v1"),
        ],
        models: &["qwen3-coder-plus", "qwen3-coder-next"],
        documentation_url: Some("https://www.alibabacloud.com/help/en/model-studio/coding-plan"),
    },
    AuthProvider {
        id: "alibabaStandard",
        label: "Alibaba ModelStudio",
        group: AuthProviderGroup::Alibaba,
        base_urls: &[
            region("cn-beijing", "China (Beijing)", "https://dashscope.aliyuncs.com/compatible-mode/v1"),
            region("intl", "Singapore", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
            region("us", "US (Virginia)", "https://dashscope-us.aliyuncs.com/compatible-mode/v1"),
        ],
        models: &["qwen3-coder-plus", "qwen3-max"],
        documentation_url: Some("https://www.alibabacloud.com/help/en/model-studio"),
    },
    AuthProvider {
        id: "deepseek",
        label: "DeepSeek",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[server("https://api.deepseek.com")],
        models: &["deepseek-v4-pro", "deepseek-v4-flash"],
        documentation_url: Some("https://api-docs.deepseek.com/"),
    },
    AuthProvider {
        id: "openai",
        label: "OpenAI",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[server("https://api.openai.com/v1")],
        models: &["gpt-5.1", "gpt-5.1-codex"],
        documentation_url: Some("https://platform.openai.com/docs"),
    },
    AuthProvider {
        id: "grok",
        label: "Grok (xAI)",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[server("https://api.x.ai/v1")],
        models: &["grok-4.5", "grok-build-0.1"],
        documentation_url: Some("https://docs.x.ai/docs"),
    },
    AuthProvider {
        id: "minimax",
        label: "MiniMax",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[
            region("international", "International", "https://api.minimax.io/v1"),
            region("china", "China", "https://api.minimaxi.com/v1"),
        ],
        models: &["MiniMax-M3", "MiniMax-M2.7"],
        documentation_url: Some("https://www.minimax.io/platform"),
    },
    AuthProvider {
        id: "zai",
        label: "Z.AI",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[
            region("standard-api-key", "Standard API key", "https://api.z.ai/api/paas/v4"),
            region("coding-plan", "Coding Plan", "https://api.z.ai/api/coding/paas/v4"),
        ],
        models: &["GLM-5.2", "GLM-5.1"],
        documentation_url: Some("https://docs.z.ai/"),
    },
    AuthProvider {
        id: "moonshot",
        label: "Kimi (Moonshot AI)",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[
            region("international", "International", "https://api.moonshot.ai/v1"),
            region("china", "China", "https://api.moonshot.cn/v1"),
        ],
        models: &["kimi-k3", "kimi-k2.7-code"],
        documentation_url: Some("https://platform.kimi.ai/docs"),
    },
    AuthProvider {
        id: "modelscope",
        label: "ModelScope",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[server("https://api-inference.modelscope.cn/v1")],
        models: &["deepseek-ai/DeepSeek-V4-Flash", "ZhipuAI/GLM-5.1"],
        documentation_url: Some("https://modelscope.cn/docs/model-service/API-Inference/intro"),
    },
    AuthProvider {
        id: "openrouter",
        label: "OpenRouter",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[server("https://openrouter.ai/api/v1")],
        models: &["z-ai/glm-4.5-air:free", "openai/gpt-oss-120b:free"],
        documentation_url: Some("https://openrouter.ai/docs"),
    },
    AuthProvider {
        id: "requesty",
        label: "Requesty",
        group: AuthProviderGroup::ThirdParty,
        base_urls: &[server("https://router.requesty.ai/v1")],
        models: &["openai/gpt-4o-mini", "openai/gpt-4o"],
        documentation_url: Some("https://docs.requesty.ai"),
    },
    AuthProvider {
        id: "custom-openai-compatible",
        label: "Custom provider",
        group: AuthProviderGroup::Custom,
        base_urls: &[],
        models: &[],
        documentation_url: None,
    },
];

impl AuthProvider {
    /// The provider of this id. `None` if the catalog has none.
    pub fn find(id: &str) -> Option<&'static Self> {
        let is_meant = |provider: &&Self| match provider.group {
            AuthProviderGroup::Custom => provider.id == id || id == CUSTOM,
            _ => provider.id == id,
        };
        AUTH_PROVIDERS.iter().find(is_meant)
    }

    pub fn descriptor(&self) -> AuthProviderDescriptor {
        let base_url = match self.base_urls {
            [] => None,
            [only] => Some(AuthBaseUrls::One(only.url.to_owned())),
            several => Some(AuthBaseUrls::Options(several.iter().map(BaseUrl::option).collect())),
        };
        let steps: &[&str] = match self.base_urls.len() {
            1 => &["apiKey", "models"],
            _ => &["baseUrl", "apiKey", "models"],
        };
        let description = match self.group {
            AuthProviderGroup::Custom => "A server of your own, a proxy, or a provider that is not listed".to_owned(),
            _ => format!("Models of {}, with an API key", self.label),
        };
        AuthProviderDescriptor {
            id: self.id.to_owned(),
            label: self.label.to_owned(),
            description,
            ui_group: self.group.id().to_owned(),
            protocol: OPENAI_PROTOCOL.to_owned(),
            protocol_options: vec![OPENAI_PROTOCOL.to_owned()],
            base_url,
            models: self.models.iter().map(|id| AuthProviderModel { id: (*id).to_owned() }).collect(),
            models_editable: true,
            documentation_url: self.documentation_url.map(str::to_owned),
            show_advanced_config: false,
            steps: steps.iter().map(|step| (*step).to_owned()).collect(),
        }
    }
}

impl BaseUrl {
    fn option(&self) -> AuthBaseUrlOption {
        AuthBaseUrlOption { id: self.id.to_owned(), label: self.label.to_owned(), url: self.url.to_owned() }
    }
}

impl AuthProviderGroup {
    const ALL: [(Self, &'static str, &'static str); 3] = [
        (Self::Alibaba, "Alibaba ModelStudio", "Plans and API keys of Alibaba Cloud"),
        (Self::ThirdParty, "Other providers", "A listed provider, with an API key"),
        (Self::Custom, "Custom provider", "A server of your own, a proxy, or a provider that is not listed"),
    ];

    fn id(self) -> &'static str {
        match self {
            Self::Alibaba => "alibaba",
            Self::ThirdParty => "third-party",
            Self::Custom => "custom",
        }
    }

    /// Every group with its providers.
    pub fn entries() -> Vec<AuthProviderGroupEntry> {
        let ids = |group| {
            let members = AUTH_PROVIDERS.iter().filter(move |provider| provider.group == group);
            members.map(|provider| provider.id.to_owned()).collect()
        };
        let entry = |(group, label, description): (Self, &str, &str)| AuthProviderGroupEntry {
            id: group.id().to_owned(),
            label: label.to_owned(),
            description: description.to_owned(),
            provider_ids: ids(group),
        };
        Self::ALL.into_iter().map(entry).collect()
    }
}
