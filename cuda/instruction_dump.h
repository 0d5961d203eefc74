// Operands that provoke the corners of matrix-instruction arithmetic, and the file that keeps what
// a device answered. Host code without CUDA: the file is replayed on machines that have no GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_core.h"

namespace assay {

// A chain of `steps` instructions and what came out.
struct InstructionRecord {
  std::string instruction;  // name of a MatrixInstruction
  std::string operands;     // which kind of operands
  int steps = 1;
  std::vector<std::byte> a;      // [m, steps * 32 bytes]
  std::vector<std::byte> b;      // [n, steps * 32 bytes]
  std::vector<std::uint32_t> c;  // [m, n] fp32 bits
  std::vector<std::uint32_t> d;  // [m, n] fp32 bits

  const MatrixInstruction& info() const;
  const std::byte* row_a(int row) const;
  const std::byte* row_b(int row) const;
};

// The bits that the CPU model gives for one output element.
std::uint32_t ModelledBits(const InstructionRecord& record, int row, int column);

// "normal", "wide", "cancel", ..., "nan", "bits"; instruction_dump.cpp says what each is after.
std::span<const std::string_view> OperandKinds();

// Operands without the answer (`d` holds zeros); the same seed gives the same bits everywhere.
InstructionRecord MakeOperands(const MatrixInstruction& instruction, std::string_view operands,
                               int steps, std::uint64_t seed);

// File layout, little endian: "ASSAYMMA", u32 version = 1, u32 records; each record is the names of
// instruction and operands (32 and 16 bytes, zero padded), u32 steps, then a, b, c, d.
// Both throw kInput naming the file and what is wrong.
void WriteInstructionDump(const std::string& path, std::span<const InstructionRecord> records);
std::vector<InstructionRecord> ReadInstructionDump(const std::string& path);

}  // namespace assay
