// Ceilings on a real GPU must be plausible: present, ordered as physics orders them, repeatable.
#include <gtest/gtest.h>

#include <map>

#include "cuda/accelerator.h"
#include "cuda/ceilings.h"

namespace assay {
namespace {

TEST(Ceilings, AreWhatAGpuCanDo) {
  std::string why_not;
  if (OpenAccelerator(0, why_not) == nullptr) GTEST_SKIP() << why_not;
  std::map<std::string, Ceiling> found;
  for (const Ceiling& ceiling : MeasureDeviceCeilings()) {
    EXPECT_TRUE(found.emplace(ceiling.name, ceiling).second) << ceiling.name << " twice";
    EXPECT_GT(ceiling.value, 0) << ceiling.name;
    EXPECT_GE(ceiling.n, 10) << ceiling.name;
    EXPECT_LE(ceiling.low, ceiling.value) << ceiling.name;
    EXPECT_GE(ceiling.high, ceiling.value) << ceiling.name;
    EXPECT_NE(ceiling.how, "") << ceiling.name;
  }
  const auto value = [&](const char* name) {
    EXPECT_TRUE(found.contains(name)) << name;
    return found[name].value;
  };
  EXPECT_GT(value("read"), 1e12);
  EXPECT_GT(value("l2_read"), value("read"));
  EXPECT_GT(value("read") * 1.1, value("copy"));
  EXPECT_GT(value("write"), 0.5 * value("write_memset"));
  EXPECT_GT(value("copy_kernel"), 0.5 * value("copy"));
  EXPECT_GT(value("dependent_launch"), value("launch") * 0.9);
  EXPECT_LT(value("programmatic_launch"), value("dependent_launch"));
  EXPECT_GT(value("launch_full"), value("launch") * 0.9);
  EXPECT_GT(value("event_overhead"), value("launch"));
  EXPECT_GT(value("grid_barrier_1024"), value("cluster_barrier_8"));
  EXPECT_GT(value("memory_latency"), value("l2_latency") * 1.3);
}

}  // namespace
}  // namespace assay
