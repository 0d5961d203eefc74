// Programmatic dependent launch: a kernel may start while the one before it still runs.
#pragma once

namespace assay::sm90 {

// Waits until the kernels that this one depends on have ended and their writes are visible. Must
// come before the first access to global memory that they write.
__device__ inline void GridDepControlWait() { asm volatile("griddepcontrol.wait;" : : : "memory"); }

// The next kernel may start once every CTA has called this or exited.
__device__ inline void GridDepControlLaunchDependents() {
  asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
}

}  // namespace assay::sm90
