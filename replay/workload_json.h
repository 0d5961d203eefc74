// One workload as a JSON document: the two accepted record forms in, our compact form out.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "replay/suite.h"

namespace assay {

// Reads the fields that we interpret and removes them from `record`, so that what stays behind is
// what we do not interpret (`extra`). Does not look at the registry. Throws kInput with a sentence.
//
//   flat (as captured)   {uuid, definition, axes, ..., request_id, scheduler_sequence_lengths,
//   step} nested               {definition, workload: {uuid, axes, ...}, attributes: {...}, ...}
//
// Known attribute names are also taken from the top level. `variant` there is the label of a
// captured record and becomes an attribute; the generator's variant is called generator_variant.
Workload TakeWorkload(nlohmann::json& record);

// TakeWorkload, and what stays behind as `extra`.
Workload KeepExtra(nlohmann::json& record);

nlohmann::json ToJson(const Workload& workload);

// Throws kInput: bad axes for `registry`'s definitions, len_cu_seqlens != num_seqs + 1. Definitions
// that the registry does not have pass with non-negative axes of sane size.
void CheckWorkload(const Workload& workload, const Registry& registry);

}  // namespace assay
