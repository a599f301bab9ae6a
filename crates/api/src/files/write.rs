//! Changing files: writing, creating, moving, copying and removing them.

use serde::{Deserialize, Serialize};

use super::{ContentEncoding, FileType, WRITE};
use crate::{
    Scope,
    endpoint::{Access, Method, Route, Success, WorkspaceEndpoint},
    operation::Operation,
    path::{AbsolutePath, LinkTarget, PathEncoding},
};

/// Writes a file, or appends to it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = WriteBody))]
pub struct WriteFile {
    /// An absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/notes.md"))]
    pub path: AbsolutePath,
    /// The file's new content.
    pub content: String,
    /// The encoding of `content`; default `utf-8`.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub encoding: ContentEncoding,
    /// Permission bits in octal digits, 0000 to 1777. Default: those of the replaced file, or 0644. Setuid and setgid
    /// cannot be set and are not kept.
    #[serde(default, with = "crate::octal_mode")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "0644"))]
    pub mode: Option<u32>,
    /// Whether to create missing parent folders; default true.
    #[serde(default = "enabled")]
    pub create_parents: bool,
    /// Whether to append the content to an existing file.
    #[serde(default)]
    pub append: bool,
}

const fn enabled() -> bool {
    true
}

impl WorkspaceEndpoint for WriteFile {
    const ROUTE: Route = Route {
        path: "/api/files/write",
        id: "write_file",
        summary: "Write a file",
        description: "Readers see either the complete old or the complete new content, even after a power failure. \
            `If-Match` and `If-None-Match: *` are honoured: of several callers with the same tag, one succeeds and the \
            others get 412, even if their paths lead through different links. This holds for all calls of this API; a \
            change by another program between the comparison and the replacement is not detected.",
        example: r##"{"path": "/srv/workspace/notes.md", "content": "# Notes\n"}"##,
        success: Success::Either {
            done: "A file was replaced or appended to",
            created: "A file was created",
        },
        body_limit: 48 << 20,
        conditional: true,
        ..WRITE
    };

    fn has_created(written: &FileWritten) -> bool {
        written.created
    }
}

/// The result of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileWritten {
    /// The path of the file as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The size of the file after the write, in bytes.
    #[cfg_attr(feature = "openapi", schema(example = 13))]
    pub size_bytes: u64,
    /// Whether the write created the file.
    pub created: bool,
    /// The entity tag of the new version of the file, for `If-Match`.
    #[cfg_attr(feature = "openapi", schema(example = "\"2a-d-18ab-18ab\""))]
    pub etag: String,
}

/// Creates a folder and its missing parents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = MakeBody))]
pub struct MakeFolder {
    /// An absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/src"))]
    pub path: AbsolutePath,
    /// Permission bits in octal digits, 0000 to 1777; default 0755.
    #[serde(default, with = "crate::octal_mode")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "0755"))]
    pub mode: Option<u32>,
}

impl WorkspaceEndpoint for MakeFolder {
    const ROUTE: Route = Route {
        path: "/api/mkdir",
        id: "make_folder",
        summary: "Create a folder",
        description: "Also creates missing parent folders.",
        example: r#"{"path": "/srv/workspace/src"}"#,
        success: Success::Either { done: "The folder existed already", created: "The folder was created" },
        ..WRITE
    };

    fn has_created(made: &FolderMade) -> bool {
        made.created
    }
}

/// The result of creating a folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FolderMade {
    /// The path of the folder as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// False if the folder existed before.
    pub created: bool,
}

/// Creates a symbolic link. The target is not resolved and need not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = LinkBody))]
pub struct MakeLink {
    /// The link, an absolute path below a root. Its folder must exist.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/latest"))]
    pub path: AbsolutePath,
    /// The target, a path that is absolute or relative to the link's folder. It need not exist.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "builds/42"))]
    pub target: LinkTarget,
    /// Whether to replace an existing file or link; default false.
    #[serde(default)]
    pub overwrite: bool,
}

impl WorkspaceEndpoint for MakeLink {
    const ROUTE: Route = Route {
        path: "/api/files/link",
        id: "make_link",
        summary: "Create a symbolic link",
        description: "The target may be any path: operations that follow a link to a path outside the roots are refused \
            with 403 `path_outside_roots`.",
        example: r#"{"path": "/srv/workspace/latest", "target": "builds/42"}"#,
        success: Success::Either { done: "A file or a link was replaced", created: "The link was created" },
        paths: &["path", "target"],
        ..WRITE
    };

    fn has_created(made: &LinkMade) -> bool {
        !made.replaced
    }
}

/// The result of creating a symbolic link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LinkMade {
    /// The path of the link as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/latest"))]
    pub path: String,
    /// The target of the link as requested.
    #[cfg_attr(feature = "openapi", schema(example = "builds/42"))]
    pub target: String,
    /// The encoding of `path` and `target`; absent if both are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// Whether an existing file or link was replaced.
    pub replaced: bool,
}

/// Removes a file, a link, or a folder with its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RemoveFile {
    /// An absolute path below a root, but not a root itself.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/old"))]
    pub path: AbsolutePath,
    /// Whether to remove a folder that is not empty; default true.
    #[serde(default = "enabled")]
    pub recursive: bool,
}

impl WorkspaceEndpoint for RemoveFile {
    const ROUTE: Route = Route {
        method: Method::Delete,
        path: "/api/files",
        id: "remove_file",
        summary: "Remove a file or a folder",
        description: "A link is removed, not followed.",
        success: Success::Done("What was removed"),
        ..WRITE
    };
}

/// The result of a removal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FileRemoved {
    /// The removed path as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub path: String,
    /// The encoding of `path`; absent if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The type of the removed file.
    pub r#type: FileType,
    /// The number of removed files, folders and links.
    #[cfg_attr(feature = "openapi", schema(example = 1))]
    pub removed: u64,
}

/// Moves a file, a link, or a folder with its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RelocateBody))]
pub struct MoveFile {
    /// An absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/draft.md"))]
    pub from: AbsolutePath,
    /// An absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/notes.md"))]
    pub to: AbsolutePath,
    /// Whether to replace an existing file.
    #[serde(default)]
    pub overwrite: bool,
}

impl WorkspaceEndpoint for MoveFile {
    const ROUTE: Route = Route {
        path: "/api/files/move",
        id: "move_file",
        summary: "Move a file or a folder",
        description: "",
        example: r#"{"from": "/srv/workspace/draft.md", "to": "/srv/workspace/notes.md"}"#,
        success: Success::Done("It was moved"),
        ..RELOCATE
    };
}

/// Copies a file, a link, or a folder with its contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(as = RelocateBody))]
pub struct CopyFile {
    /// An absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/draft.md"))]
    pub from: AbsolutePath,
    /// An absolute path below a root.
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "/srv/workspace/notes.md"))]
    pub to: AbsolutePath,
    /// Whether to replace an existing file.
    #[serde(default)]
    pub overwrite: bool,
}

impl WorkspaceEndpoint for CopyFile {
    const ROUTE: Route = Route {
        path: "/api/files/copy",
        id: "copy_file",
        summary: "Copy a file or a folder",
        description: "Links are copied as links; sockets, pipes and devices are left out.",
        example: r#"{"from": "/srv/workspace/notes.md", "to": "/srv/workspace/copy.md"}"#,
        success: Success::Done("It was copied"),
        ..RELOCATE
    };
}

/// A route that moves or copies files.
const RELOCATE: Route =
    Route { access: Access::AnyKey(&[Scope::FilesRead, Scope::FilesWrite]), paths: &["from", "to"], ..WRITE };

/// The result of a move or a copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Relocated {
    /// The source path as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/draft.md"))]
    pub from: String,
    /// The destination path as requested.
    #[cfg_attr(feature = "openapi", schema(example = "/srv/workspace/notes.md"))]
    pub to: String,
    /// The encoding of `from` and `to`; absent if both are UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_encoding: Option<PathEncoding>,
    /// The type of the file.
    pub r#type: FileType,
    /// Whether an existing file at the destination was replaced.
    pub replaced: bool,
}

/// The precondition of a write, from `If-Match` or `If-None-Match`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteCondition {
    /// No precondition.
    #[default]
    None,
    /// The file exists and has one of these entity tags.
    Matches(Vec<String>),
    /// The file exists.
    Exists,
    /// The file does not exist.
    Absent,
}

macro_rules! operations {
    ($($operation:ident = $name:literal -> $answer:ident),+ $(,)?) => {
        $(impl Operation for $operation {
            const NAME: &'static str = $name;
            type Answer = $answer;
        })+
    };
}

operations! {
    WriteFile = "write-file" -> FileWritten,
    MakeFolder = "make-folder" -> FolderMade,
    MakeLink = "make-link" -> LinkMade,
    RemoveFile = "remove-file" -> FileRemoved,
    MoveFile = "move-file" -> Relocated,
    CopyFile = "copy-file" -> Relocated,
}
