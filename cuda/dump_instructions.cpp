// Runs single matrix instructions on the device and keeps operands and results:
//   dump_instructions FILE [COPIES [SEED]]
// COPIES scales the number of instructions per kind of operands. The committed file is
// results/h200/tensor_core/instructions.bin, made with COPIES = 1 and SEED = 1. Prints, for every
// instruction and kind, how many outputs differ from the CPU model.
#include <cstdio>
#include <cstdlib>

#include "base/error.h"
#include "cuda/instruction_dump.h"
#include "cuda/matrix_instruction.h"

namespace assay {
namespace {

void Answer(InstructionRecord& record) {
  RunMatrixInstructions(record.info(), 1, record.steps, record.a.data(), record.b.data(),
                        record.c.data(), record.d.data());
}

int Mismatches(const InstructionRecord& record) {
  const MatrixInstruction& info = record.info();
  int mismatches = 0;
  for (int row = 0; row < info.m(); ++row) {
    for (int column = 0; column < MatrixInstruction::n; ++column) {
      const auto at = static_cast<std::size_t>(row * MatrixInstruction::n + column);
      mismatches += ModelledBits(record, row, column) != record.d[at];
    }
  }
  return mismatches;
}

// A tensor core's answer may not depend on the day: the same operands once more, all bits equal.
void RequireRepeatable(const InstructionRecord& record) {
  InstructionRecord again = record;
  Answer(again);
  if (again.d != record.d) {
    throw Error(Fault::kDevice, record.instruction + ": two runs gave different bits");
  }
}

void Dump(const char* path, int copies, std::uint64_t seed) {
  std::vector<InstructionRecord> records;
  for (const MatrixInstruction& instruction : MatrixInstructions()) {
    std::printf("%-26s", std::string(instruction.name).c_str());
    for (std::string_view kind : OperandKinds()) {
      // 16 rows a time against 64: three small ones weigh about as much as a large one.
      const int count = copies * (instruction.warpgroup ? 1 : 3);
      int mismatches = 0;
      for (int i = 0; i < count; ++i) {
        records.push_back(MakeOperands(instruction, kind, 1, seed + records.size()));
        Answer(records.back());
        RequireRepeatable(records.back());
        mismatches += Mismatches(records.back());
      }
      std::printf(" %s %d/%d", std::string(kind).c_str(), mismatches,
                  count * instruction.m() * MatrixInstruction::n);
    }
    if (instruction.a == instruction.b) {
      records.push_back(MakeOperands(instruction, "normal", 16, seed + records.size()));
      Answer(records.back());
      std::printf(" chain %d", Mismatches(records.back()));
    }
    std::printf("\n");
  }
  WriteInstructionDump(path, records);
}

}  // namespace
}  // namespace assay

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: dump_instructions FILE [COPIES [SEED]]\n");
    return 2;
  }
  try {
    if (const std::string why = assay::MatrixInstructionsUnsupported(); !why.empty()) {
      std::fprintf(stderr, "%s\n", why.c_str());
      return 3;
    }
    const int copies = argc > 2 ? std::atoi(argv[2]) : 1;
    const auto seed = argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1u;
    assay::Dump(argv[1], copies, seed);
  } catch (const assay::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.fault());
  }
  return 0;
}
