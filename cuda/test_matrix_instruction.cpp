// Fresh random operands on the device of this machine against the CPU model, bit for bit.
#include <gtest/gtest.h>

#include <random>

#include "cuda/instruction_dump.h"
#include "cuda/matrix_instruction.h"

namespace assay {
namespace {

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = MatrixInstructionsUnsupported();
    if (!why.empty()) GTEST_SKIP() << why;
  }

  static InstructionRecord Answered(const MatrixInstruction& instruction, std::string_view kind,
                                    int steps, std::uint64_t seed) {
    InstructionRecord record = MakeOperands(instruction, kind, steps, seed);
    RunMatrixInstructions(instruction, 1, steps, record.a.data(), record.b.data(), record.c.data(),
                          record.d.data());
    return record;
  }

  static void ExpectModelled(const InstructionRecord& record, std::uint64_t seed) {
    const MatrixInstruction& info = record.info();
    for (int row = 0; row < info.m(); ++row) {
      for (int column = 0; column < MatrixInstruction::n; ++column) {
        const auto at = static_cast<std::size_t>(row * MatrixInstruction::n + column);
        ASSERT_EQ(ModelledBits(record, row, column), record.d[at])
            << info.name << ", " << record.operands << ", seed " << seed << " [" << row << ","
            << column << "]";
      }
    }
  }
};

TEST_F(OnDevice, SingleInstructionsHaveTheModelsBits) {
  std::uint64_t seed = std::random_device{}();
  for (const MatrixInstruction& instruction : MatrixInstructions()) {
    for (std::string_view kind : OperandKinds()) {
      for (int i = 0; i < 8; ++i, ++seed) {
        ExpectModelled(Answered(instruction, kind, 1, seed), seed);
      }
    }
  }
}

// K = 2048 elements of bf16: what a kernel does with one chain of accumulators.
TEST_F(OnDevice, ChainsHaveTheModelsBits) {
  std::uint64_t seed = std::random_device{}();
  for (const MatrixInstruction& instruction : MatrixInstructions()) {
    for (const char* kind : {"normal", "wide"}) {
      ++seed;
      ExpectModelled(Answered(instruction, kind, 128, seed), seed);
    }
  }
}

}  // namespace
}  // namespace assay
