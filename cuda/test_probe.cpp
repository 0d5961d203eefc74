#include <gtest/gtest.h>

#include "cuda/probe.h"

namespace assay {
namespace {

TEST(CudaProbe, RunsOrSaysThatThereIsNoDevice) {
  const int answer = CudaProbe();
  if (answer == -35 || answer == -100)
    GTEST_SKIP() << "no CUDA driver or device (" << answer << ")";
  EXPECT_EQ(answer, 42);
}

}  // namespace
}  // namespace assay
