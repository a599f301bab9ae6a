//! The description of an endpoint, made from its type.

use serde_json::Value;
use skep_api::{
    Endpoint, WorkspaceEndpoint,
    endpoint::{Access, Body, Method, PathField, PathFields, Route, Success},
    exec::VmField,
    path::PathEncoding,
};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{
        ContentBuilder, HttpMethod, Object, ObjectBuilder, OneOfBuilder, Ref, RefOr, Required, Response,
        ResponseBuilder,
        path::{OperationBuilder, Parameter, ParameterBuilder, ParameterIn, Paths},
        request_body::{RequestBody, RequestBodyBuilder},
        schema::{Schema, SchemaType, Type},
        security::SecurityRequirement,
    },
};

use super::refusals::{OPTIONAL_BODY, responses_of};
use crate::body::BodyLimit;

/// The description of `vm` in a query and in a body.
const VM: &str = "A VM, by process id, id or name. Default: the workspace of the server.";

type Schemas = Vec<(String, RefOr<Schema>)>;

/// The description of an endpoint, and the schemas that it refers to.
pub(crate) fn describe<O>() -> (Schemas, Paths)
where
    O: Endpoint + ToSchema,
    O::Answer: ToSchema,
{
    describe_request::<O>(described::<O>(), fields_of::<O>())
}

/// As [`describe`], for an operation on a workspace, which also takes a VM and the encoding of its paths.
pub(crate) fn describe_on_workspace<O>() -> (Schemas, Paths)
where
    O: WorkspaceEndpoint + ToSchema,
    O::Answer: ToSchema,
{
    let route = <O as WorkspaceEndpoint>::ROUTE;
    let description = format!("{} In a VM it also needs the scope `swarm:exec`.", route.description);
    let operation = described::<O>().description(Some(description.trim_start()));
    let (mut schemas, paths) = describe_request::<O>(operation, fields_on_workspace::<O>());
    if route.method.has_body() {
        VmField::schemas(&mut schemas);
        schemas.push((VmField::name().into_owned(), VmField::schema()));
    }
    if !route.paths.is_empty() {
        schemas.push((PathEncoding::name().into_owned(), PathEncoding::schema()));
    }
    (schemas, paths)
}

/// Completes the description of an operation by its request, which has these fields.
fn describe_request<O>(mut operation: OperationBuilder, request: Object) -> (Schemas, Paths)
where
    O: Endpoint + ToSchema,
    O::Answer: ToSchema,
{
    let named: Vec<&str> = O::Path::FIELDS.iter().map(|field| field.name).collect();
    debug_assert_eq!(segments_in(O::ROUTE.path), named, "{}: its `Path` has other segments", O::ROUTE.id);
    let mut schemas = Schemas::new();
    O::schemas(&mut schemas);
    O::Answer::schemas(&mut schemas);
    schemas.push((O::Answer::name().into_owned(), O::Answer::schema()));
    operation = operation.parameters(Some(O::Path::FIELDS.iter().map(path_parameter)));
    operation = match O::ROUTE.body {
        _ if !O::ROUTE.method.has_body() => operation.parameters(Some(parameters(request))),
        Body::Required => {
            schemas.push((O::name().into_owned(), Schema::Object(request).into()));
            operation.request_body(Some(body(&O::ROUTE, Ref::from_schema_name(O::name()))))
        }
        Body::Optional => {
            let null = ObjectBuilder::new().schema_type(Type::Null);
            let either = OneOfBuilder::new().item(Schema::Object(request)).item(null);
            operation.request_body(Some(body(&O::ROUTE, Schema::OneOf(either.build()))))
        }
        Body::Empty => operation,
    };
    if O::ROUTE.conditional {
        operation = operation.parameters(Some(precondition_headers()));
    }
    let mut paths = Paths::new();
    let method = match O::ROUTE.method {
        Method::Get => HttpMethod::Get,
        Method::Post => HttpMethod::Post,
        Method::Patch => HttpMethod::Patch,
        Method::Delete => HttpMethod::Delete,
    };
    paths.add_path_operation(O::ROUTE.path, vec![method], operation.build());
    (schemas, paths)
}

/// The operation without its request.
fn described<O: Endpoint>() -> OperationBuilder
where
    O::Answer: ToSchema,
{
    let route = O::ROUTE;
    let security = match route.access {
        Access::Public => SecurityRequirement::default(),
        _ => SecurityRequirement::new("bearer", route.access.scopes().iter().map(|scope| scope.as_str())),
    };
    let mut operation = OperationBuilder::new()
        .operation_id(Some(route.id))
        .tag(route.tag)
        .summary(Some(route.summary))
        .description(Some(route.description))
        .security(security);
    for (status, response) in answers::<O>(route.success) {
        operation = operation.response(status, response);
    }
    let is_empty = route.method.has_body() && route.body == Body::Empty;
    let of_body = if is_empty { OPTIONAL_BODY } else { &[] };
    for (status, response) in responses_of(&[route.refusals.concat().as_slice(), of_body].concat()) {
        operation = operation.response(status, response);
    }
    operation
}

/// The names of the variable segments of a path.
fn segments_in(path: &str) -> Vec<&str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}')).collect()
}

fn path_parameter(field: &PathField) -> Parameter {
    ParameterBuilder::new()
        .name(field.name)
        .parameter_in(ParameterIn::Path)
        .required(Required::True)
        .description(Some(field.description))
        .example(Some(field.example.into()))
        .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
        .build()
}

fn body(route: &Route, schema: impl Into<RefOr<Schema>>) -> RequestBody {
    let content = ContentBuilder::new().schema(Some(schema)).example(example(route.example)).build();
    let required = (route.body == Body::Required).then_some(Required::True);
    let limit = BodyLimit::of_route(route);
    RequestBodyBuilder::new()
        .description(Some(format!("At most {limit}.")))
        .required(required)
        .content("application/json", content)
        .build()
}

/// The example of a route; `None` if it is empty.
fn example(json: &str) -> Option<Value> {
    let example = serde_json::from_str(json);
    debug_assert!(json.is_empty() || example.is_ok(), "the example {json} is not JSON");
    example.ok()
}

fn answers<O: Endpoint>(success: Success) -> Vec<(&'static str, Response)>
where
    O::Answer: ToSchema,
{
    let answer = |description: &str| {
        let schema = Ref::from_schema_name(O::Answer::name());
        let example = example(O::ROUTE.answer_example);
        let content = ContentBuilder::new().schema(Some(schema)).example(example).build();
        ResponseBuilder::new().description(description).content("application/json", content).build()
    };
    match success {
        Success::Done(done) => vec![("200", answer(done))],
        Success::Created(created) => vec![("201", answer(created))],
        Success::Accepted(accepted) => vec![("202", answer(accepted))],
        Success::Either { done, created } => vec![("200", answer(done)), ("201", answer(created))],
    }
}

/// The fields of an operation.
fn fields_of<O: ToSchema>() -> Object {
    match O::schema() {
        RefOr::T(Schema::Object(object)) => object,
        _ => Object::new(),
    }
}

/// The fields of an operation, with those that every request on a workspace may have.
fn fields_on_workspace<O: WorkspaceEndpoint + ToSchema>() -> Object {
    let mut request = fields_of::<O>();
    if let Some(last) = O::ROUTE.paths.iter().filter_map(|name| request.properties.get_index_of(*name)).max()
    {
        let encoding = Ref::builder().ref_location_from_schema_name(PathEncoding::name());
        let encoding = encoding.description(Some("The encoding of paths.")).build();
        request.properties.shift_insert(last + 1, "path_encoding".to_owned(), encoding.into());
    }
    let vm = if O::ROUTE.method.has_body() {
        Ref::builder().ref_location_from_schema_name(VmField::name()).description(Some(VM)).build().into()
    } else {
        ObjectBuilder::new().schema_type(Type::String).description(Some(VM)).into()
    };
    request.properties.insert("vm".to_owned(), vm);
    let required = request.required.clone();
    if O::ROUTE.method.has_body() {
        let optional = request.properties.iter_mut().filter(|(name, _)| !required.contains(name));
        optional.for_each(|(_, field)| make_nullable(field));
    }
    request
}

/// Allows null, which counts as an absent field of a body.
fn make_nullable(field: &mut RefOr<Schema>) {
    match field {
        RefOr::T(Schema::Object(object)) => allow_null(&mut object.schema_type),
        RefOr::T(Schema::Array(array)) => allow_null(&mut array.schema_type),
        RefOr::T(_) => {}
        RefOr::Ref(reference) => {
            let description = std::mem::take(&mut reference.description);
            let null = ObjectBuilder::new().schema_type(Type::Null);
            let either = OneOfBuilder::new().item(null).item(reference.clone());
            let description = Some(description).filter(|text| !text.is_empty());
            *field = Schema::OneOf(either.description(description).build()).into();
        }
    }
}

fn allow_null(schema: &mut SchemaType) {
    if let SchemaType::Type(one) = schema {
        *schema = SchemaType::Array(vec![one.clone(), Type::Null]);
    }
}

/// Removes null from a schema: a query cannot contain it.
fn forbid_null(schema: &mut RefOr<Schema>) {
    let is_null = |item: &RefOr<Schema>| {
        let null = SchemaType::Type(Type::Null);
        matches!(item, RefOr::T(Schema::Object(object)) if object.schema_type == null)
    };
    match schema {
        RefOr::T(Schema::Object(Object { schema_type, .. })) => {
            if let SchemaType::Array(types) = schema_type
                && let [one, Type::Null] = types.as_slice()
            {
                *schema_type = SchemaType::Type(one.clone());
            }
        }
        RefOr::T(Schema::OneOf(one_of)) => {
            one_of.items.retain(|item| !is_null(item));
            if let [only] = one_of.items.as_slice() {
                *schema = only.clone();
            }
        }
        _ => {}
    }
}

/// Each field of a request as a parameter of the query.
fn parameters(request: Object) -> Vec<Parameter> {
    let required = request.required;
    let parameter = |(name, mut schema): (String, RefOr<Schema>)| {
        let (outer, example) = take_documentation(&mut schema);
        forbid_null(&mut schema);
        // That of a nullable reference is inside.
        let description = outer.or_else(|| take_documentation(&mut schema).0);
        let is_required = if required.contains(&name) { Required::True } else { Required::False };
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Query)
            .required(is_required)
            .description(description)
            .example(example)
            .schema(Some(schema))
            .build()
    };
    request.properties.into_iter().map(parameter).collect()
}

/// Removes the description and the example of a schema, for the parameter.
fn take_documentation(schema: &mut RefOr<Schema>) -> (Option<String>, Option<Value>) {
    match schema {
        RefOr::T(Schema::Object(object)) => (object.description.take(), object.example.take()),
        RefOr::T(Schema::Array(array)) => (array.description.take(), array.example.take()),
        RefOr::T(Schema::OneOf(one_of)) => (one_of.description.take(), one_of.example.take()),
        RefOr::Ref(reference) => {
            (Some(std::mem::take(&mut reference.description)).filter(|text| !text.is_empty()), None)
        }
        RefOr::T(_) => (None, None),
    }
}

fn precondition_headers() -> [Parameter; 2] {
    let header = |name: &str, description: &str| {
        ParameterBuilder::new()
            .name(name)
            .parameter_in(ParameterIn::Header)
            .required(Required::False)
            .description(Some(description))
            .schema(Some(ObjectBuilder::new().schema_type(Type::String)))
            .build()
    };
    [
        header("If-Match", "Tags of which the file must have one, or `*`"),
        header("If-None-Match", "`*`: only if the file does not exist"),
    ]
}
