/* The C interface of Assay plugins, version 1: how `assay run --plugin ./libmine.so` calls your
 * kernel.
 *
 * A plugin is a shared library that exports one function, assay_plugin_backends. It is loaded into
 * worker processes only, never into the program that judges it. Everything that a call gets is
 * valid until `run` returns; inputs must not change, every output element must be written, nothing
 * else may be. docs/judge-my-kernel.md walks through an example. */
#ifndef ASSAY_PLUGIN_H
#define ASSAY_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ASSAY_PLUGIN_ABI 1u

/* The same memory layout as DLTensor of DLPack (0.8 to 1.x), field for field: a pointer to one may
 * be cast to the other. */
typedef struct AssayTensor {
  void* data; /* first element; NULL while only a shape is asked about */
  struct {
    int32_t type; /* kDLCPU = 1, kDLCUDA = 2 */
    int32_t id;
  } device;
  int32_t ndim;
  struct {
    uint8_t code; /* ASSAY_DTYPE_* */
    uint8_t bits; /* of one element */
    uint16_t lanes;
  } dtype;
  int64_t* shape;
  int64_t* strides;     /* NULL: row-major without gaps */
  uint64_t byte_offset; /* always 0 */
} AssayTensor;

/* DLPack's type codes. e2m1 pairs: two elements a byte, the low nibble first; `shape` counts
 * elements. */
enum {
  ASSAY_DTYPE_INT = 0,
  ASSAY_DTYPE_UINT = 1,
  ASSAY_DTYPE_FLOAT = 2,
  ASSAY_DTYPE_BFLOAT = 4,
  ASSAY_DTYPE_BOOL = 6,
  ASSAY_DTYPE_FLOAT8_E4M3FN = 10,
  ASSAY_DTYPE_FLOAT8_E5M2 = 12,
  ASSAY_DTYPE_FLOAT8_E8M0FNU = 14,
  ASSAY_DTYPE_FLOAT4_E2M1FN = 17
};

typedef struct AssayNamedTensor {
  const char* name;
  AssayTensor tensor;
} AssayNamedTensor;

typedef struct AssayAxis {
  const char* name;
  int64_t value;
} AssayAxis;

/* One call of an operator. New fields are added at the end only, with a new ABI number. */
typedef struct AssayCall {
  uint32_t abi; /* ASSAY_PLUGIN_ABI of the caller */
  const char* definition;
  size_t axis_count; /* constants and variables together, sorted by name */
  const AssayAxis* axes;
  size_t input_count; /* in declared order; absent optional inputs are left out */
  const AssayNamedTensor* inputs;
  size_t output_count;
  const AssayNamedTensor* outputs;
  void* workspace; /* as many bytes as `workspace_bytes` asked for, 256-byte aligned, contents
                      undefined */
  size_t workspace_bytes;
  void* stream;    /* cudaStream_t to enqueue on; NULL: compute before returning */
  int32_t threads; /* CPU threads to use at most; 0 = all cores of the process */
} AssayCall;

/* A kernel. Unused functions may be NULL, except `run`. */
typedef struct AssayBackend {
  const char* name;       /* shown in results, e.g. "mine_v2"; not the name of a built-in backend */
  const char* definition; /* the definition or the operator family that it computes */
  const char* summary;    /* one line */
  /* NULL when it can run this call, else the reason in one sentence. Output data is NULL. */
  const char* (*supports)(const AssayCall* call);
  /* Bytes of workspace that this call needs; < 0 = cannot be run. Output data is NULL. */
  int64_t (*workspace_bytes)(const AssayCall* call);
  /* 0 when the outputs are written. Anything else is a failed case. */
  int (*run)(const AssayCall* call);
  /* What went wrong in the last call of this thread. */
  const char* (*error)(void);
} AssayBackend;

#if defined(_WIN32)
#define ASSAY_PLUGIN_EXPORT __declspec(dllexport)
#else
#define ASSAY_PLUGIN_EXPORT __attribute__((visibility("default")))
#endif

/* The exported function: the plugin's kernels, `*count` of them, valid until the process ends.
 * Returns NULL when the plugin does not speak `host_abi`. */
ASSAY_PLUGIN_EXPORT const AssayBackend* assay_plugin_backends(uint32_t host_abi, size_t* count);

#ifdef __cplusplus
}
#endif
#endif
