// Captured files to our compact workloads, and the built-in suites that are made from them.
#pragma once

#include <string>
#include <vector>

#include "replay/suite.h"

namespace assay {

// Reads captured records (1,104 objects, one a line, full provenance) and keeps what replaying,
// generating and checking them needs; prompts, command lines, environments and texts are dropped.
// Beyond what LoadSuite reads, attributes gain:
//
//   width, height, num_frames, fps       of the image or video request; reference_image = 1
//   member_input_tokens, member_output_tokens, member_reusable_tokens
//                                        per request of the decode batch, in submission order (one
//                                        entry for single-request captures)
//   expected_output, expected_<name>     SHA-256 of the engine's output blob (its file name)
//   engine_block_ids, original_physical_page_ids
//                                        the first 16 digits of such a hash: equality evidence only
//
// `phase` is the scheduler's mode where there is one; else "decode" or "prefill" by the name of the
// definition (GDN), "prefix" for the pass over the text and reference image that precedes
// denoising, "vae" for the video decoder, and "denoise" for the rest.
//
// Dense GEMM records with the same output share the first one's `content_id`. Bad records become
// `problems`; throws kInput when the file cannot be read.
Suite ImportRecords(const std::string& path, const Registry& registry);

// The suite `smoke`: captured workloads that two CPU cores finish in seconds. Throws kInput when
// `captured` lacks one of them.
std::vector<Workload> SmokeWorkloads(const std::vector<Workload>& captured);

// The suite `worldmodel`: the distinct attention shapes of the world-model replays (a JSON list),
// as noncausal_dense_attention_h<heads>_d128 with Nk = k_len; `k_buffer` is the longer buffer that
// the engine held them in. A shape has no captured uuid, so it gets one of version 8: the SHA-256
// of "assay/worldmodel/<definition>/<Nq>/<Nk>". Throws kInput naming the entry that is not
// understood.
std::vector<Workload> WorldModelWorkloads(const std::string& path);

// The suite `step`: the operators of one decode step of GLM-5.3-Flash that nobody captured, in the
// model's sizes, for steps of 1 to 16 rows. uuids are of version 8, made of
// "assay/step/<definition>/<axis>=<value>...".
std::vector<Workload> StepWorkloads();

// RFC 9562 version 8: the name's SHA-256 with the version and variant bits set.
std::string UuidOfName(const std::string& name);

}  // namespace assay
