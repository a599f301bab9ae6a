//! The messages of the forwarder, from the bytes of a query to those of its answer.

use std::net::Ipv4Addr;

use hickory_resolver::proto::{
    op::{Message, MessageType, OpCode, Query, ResponseCode},
    rr::{RData, Record, rdata::A},
};
use skep_api::egress::{is_name, normalized};

/// How long a VM may keep the address of a name, in seconds. A name that the policy allows meanwhile should be usable soon, and so should
/// one whose address is refused because the VM may mean an earlier name of it.
const TTL: u32 = 60;

/// The answer to a query. `address` gives that of the name in its question, which is normalized and can be the name of a
/// host; `None` for a type of record that names do not have here. `None` if these bytes are no query.
pub(crate) fn answer(
    query: &[u8],
    address: impl FnOnce(&str, &Query) -> Result<Option<Ipv4Addr>, ResponseCode>,
) -> Option<Vec<u8>> {
    let query = Message::from_vec(query).ok()?;
    if query.metadata.message_type != MessageType::Query {
        return None;
    }
    let mut answer = Message::response(query.metadata.id, query.metadata.op_code);
    answer.metadata.recursion_desired = query.metadata.recursion_desired;
    answer.metadata.recursion_available = true;
    answer.metadata.response_code = match query.queries.as_slice() {
        [question] if query.metadata.op_code == OpCode::Query => {
            answer.add_query(question.clone());
            let name = normalized(&question.name().to_ascii());
            let found = if is_name(&name) { address(&name, question) } else { Err(ResponseCode::Refused) };
            match found {
                Ok(Some(address)) => {
                    answer.add_answer(Record::from_rdata(question.name().clone(), TTL, RData::A(A(address))));
                    ResponseCode::NoError
                }
                Ok(None) => ResponseCode::NoError,
                Err(code) => code,
            }
        }
        _ => ResponseCode::NotImp,
    };
    answer.to_vec().ok()
}
