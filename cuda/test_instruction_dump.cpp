// What one H200 answered to single matrix instructions, replayed by the CPU model; and mutants of
// the rule, which the same answers refute. Needs no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/tensor_core_oracle.h"
#include "cuda/instruction_dump.h"

namespace assay {
namespace {

const std::string kFile =
    std::string(ASSAY_SOURCE_DIR) + "/results/h200/tensor_core/instructions.bin";

// An answer of the device and its operands.
struct Output {
  const InstructionRecord& record;
  int row, column;
  float c() const { return std::bit_cast<float>(record.c[at()]); }
  std::uint32_t d() const { return record.d[at()]; }
  std::size_t at() const { return static_cast<std::size_t>(row * MatrixInstruction::n + column); }
};

void ForEachOutput(const InstructionRecord& record,
                   const std::function<void(const Output&)>& visit) {
  for (int row = 0; row < record.info().m(); ++row) {
    for (int column = 0; column < MatrixInstruction::n; ++column) visit({record, row, column});
  }
}

std::uint32_t Modelled(const Output& output) {
  return ModelledBits(output.record, output.row, output.column);
}

std::uint32_t Mistaken(const Output& output, Mistake mistake) {
  const InstructionRecord& record = output.record;
  const TensorCoreRule rule = RuleOf(record.info());
  float sum = output.c();
  for (int at = 0; at < record.steps * record.info().k(); at += rule.block) {
    sum = OracleBlock(rule, record.row_a(output.row) + at * OperandBytes(rule.a),
                      record.row_b(output.column) + at * OperandBytes(rule.b), sum, mistake);
  }
  return std::bit_cast<std::uint32_t>(sum);
}

class Golden : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(std::filesystem::path(kFile).parent_path())) {
      GTEST_SKIP() << "results/h200/tensor_core/ is not in this checkout";
    }
    records_ = ReadInstructionDump(kFile);
  }
  std::vector<InstructionRecord> records_;
};

TEST_F(Golden, HoldsEveryInstructionAndKindOfOperands) {
  std::map<std::string, int> outputs;
  for (const InstructionRecord& record : records_) {
    outputs[record.instruction + " " + record.operands] += static_cast<int>(record.d.size());
    outputs[record.instruction] += static_cast<int>(record.d.size());
  }
  for (const MatrixInstruction& instruction : MatrixInstructions()) {
    const std::string name(instruction.name);
    EXPECT_GE(outputs[name], 2000) << name;
    for (std::string_view kind : OperandKinds()) {
      EXPECT_GE(outputs[name + " " + std::string(kind)], 128) << name << " " << kind;
    }
  }
}

TEST_F(Golden, ModelGivesEveryBit) {
  for (const InstructionRecord& record : records_) {
    int different = 0;
    ForEachOutput(record, [&](const Output& output) {
      if (Modelled(output) != output.d() && different++ == 0) {
        ADD_FAILURE() << record.instruction << ", " << record.operands << " [" << output.row << ","
                      << output.column << "]: " << std::hex << Modelled(output)
                      << ", the device says " << output.d();
      }
    });
    ASSERT_EQ(different, 0) << record.instruction << ", " << record.operands;
  }
}

TEST_F(Golden, OracleAgreesOnNumbers) {
  for (const InstructionRecord& record : records_) {
    ForEachOutput(record, [&](const Output& output) {
      ASSERT_EQ(Mistaken(output, Mistake::kNone), output.d())
          << record.instruction << ", " << record.operands;
    });
  }
}

// Every mistake must show in the outputs of every instruction, or the file proves nothing about it.
TEST_F(Golden, MutantsOfTheRuleAreRefuted) {
  std::map<std::string, std::map<Mistake, int>> refuted;
  for (const InstructionRecord& record : records_) {
    for (const Mistake mistake : kMistakes) {
      ForEachOutput(record, [&](const Output& output) {
        refuted[record.instruction][mistake] += Mistaken(output, mistake) != output.d();
      });
    }
  }
  for (const MatrixInstruction& instruction : MatrixInstructions()) {
    const bool all_of_fp32 = RuleOf(instruction).significant_bits == 24;
    for (const Mistake mistake : kMistakes) {
      if (mistake == Mistake::kOneBitMore && all_of_fp32) continue;
      EXPECT_GE(refuted[std::string(instruction.name)][mistake], 20)
          << instruction.name << ", mistake " << static_cast<int>(mistake);
    }
  }
}

// --- the file itself ---

std::vector<InstructionRecord> TwoRecords() {
  return {MakeOperands(*FindMatrixInstruction("mma.m16n8k16.bf16.bf16"), "wide", 1, 7),
          MakeOperands(*FindMatrixInstruction("wgmma.m64n8k32.e5m2.e5m2"), "nan", 3, 8)};
}

std::string TemporaryPath(const char* name) { return testing::TempDir() + name; }

TEST(InstructionDump, ComesBackAsWritten) {
  const std::string path = TemporaryPath("instructions.bin");
  const std::vector<InstructionRecord> written = TwoRecords();
  WriteInstructionDump(path, written);
  const std::vector<InstructionRecord> read = ReadInstructionDump(path);
  ASSERT_EQ(read.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(read[i].instruction, written[i].instruction);
    EXPECT_EQ(read[i].operands, written[i].operands);
    EXPECT_EQ(read[i].steps, written[i].steps);
    EXPECT_EQ(read[i].a, written[i].a);
    EXPECT_EQ(read[i].b, written[i].b);
    EXPECT_EQ(read[i].c, written[i].c);
    EXPECT_EQ(read[i].d, written[i].d);
  }
}

// Writes a valid file, lets `damage` change its bytes, and returns what reading it says.
std::string Refusal(const std::function<void(std::string&)>& damage) {
  const std::string path = TemporaryPath("damaged.bin");
  WriteInstructionDump(path, TwoRecords());
  std::ifstream in(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  damage(bytes);
  std::ofstream(path, std::ios::binary) << bytes;
  try {
    ReadInstructionDump(path);
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::kInput);
    return error.what();
  }
  return "";
}

TEST(InstructionDump, DamageIsNamed) {
  using testing::HasSubstr;
  EXPECT_EQ(Refusal([](std::string&) {}), "");
  EXPECT_THAT(Refusal([](std::string& bytes) { bytes.pop_back(); }), HasSubstr("ends inside"));
  EXPECT_THAT(Refusal([](std::string& bytes) { bytes.resize(5); }), HasSubstr("is no dump"));
  EXPECT_THAT(Refusal([](std::string& bytes) { bytes += 'x'; }),
              HasSubstr("after its last record"));
  EXPECT_THAT(Refusal([](std::string& bytes) { bytes[0] = 'X'; }), HasSubstr("is no dump"));
  EXPECT_THAT(Refusal([](std::string& bytes) { bytes[8] = 9; }), HasSubstr("version 9"));
  EXPECT_THAT(Refusal([](std::string& bytes) { bytes[16] = 'x'; }),
              HasSubstr("unknown instruction 'xma."));
  EXPECT_THAT(Refusal([](std::string& bytes) { bytes[64] = 0; }), HasSubstr("chain of 0 steps"));
  EXPECT_THROW(ReadInstructionDump("/no/such/file"), Error);
}

TEST(InstructionDump, OperandsFollowTheSeedAlone) {
  const MatrixInstruction& info = *FindMatrixInstruction("wgmma.m64n8k8.tf32.tf32");
  for (std::string_view kind : OperandKinds()) {
    const InstructionRecord one = MakeOperands(info, kind, 2, 5),
                            same = MakeOperands(info, kind, 2, 5);
    EXPECT_EQ(one.a, same.a);
    EXPECT_EQ(one.c, same.c);
    EXPECT_NE(one.a, MakeOperands(info, kind, 2, 6).a) << kind;
  }
}

}  // namespace
}  // namespace assay
