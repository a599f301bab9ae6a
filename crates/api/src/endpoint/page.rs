//! The requests of lists.

/// Declares the request of a list without filters, whose cursors are ids of the given kind.
macro_rules! list_request {
    ($(#[$doc:meta])* $name:ident of $id:ty) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $name {
            /// Entries on the page, 1 to 1,000; default 100.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000))]
            pub limit: Option<u32>,
            /// `next_cursor` of the previous page.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[cfg_attr(feature = "openapi", schema(inline, value_type = Option<$id>))]
            pub cursor: Option<String>,
        }
    };
}
pub(crate) use list_request;
