//! Users: add, list, change, remove, create tokens. For operators.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    users::{CreateUser, CreateUserToken, ListUsers, UpdateUser, User, UserPage, UserToken},
};

use crate::{client::Client, path::Path, response};

impl Client {
    pub async fn create_user(&self, user: &CreateUser) -> Result<User, Failure> {
        self.post(Path::api(&["users"]), user).await
    }

    pub async fn list_users(&self, query: &ListUsers) -> Result<UserPage, Failure> {
        self.get(Path::api(&["users"]).query(query)?).await
    }

    pub async fn update_user(&self, name: &str, changes: &UpdateUser) -> Result<User, Failure> {
        self.patch(Path::api(&["users", name]), changes).await
    }

    pub async fn remove_user(&self, name: &str) -> Result<User, Failure> {
        response::parse(&self.call(Method::DELETE, Path::api(&["users", name]), Bytes::new()).await?)
    }

    /// Creates a token for the user. It is not stored anywhere.
    pub async fn create_user_token(&self, name: &str, token: &CreateUserToken) -> Result<UserToken, Failure> {
        self.post(Path::api(&["users", name, "token"]), token).await
    }
}
