// Which typed calls are legal, and typed arguments from named tensors.
#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "ops/neighborhood_attention_3d/spec.h"

namespace assay::neighborhood_attention_3d {
namespace {

constexpr std::string_view kOperation = "neighborhood_attention_3d: ";
// 16 bytes: what TMA and vector loads need, and what the page allows.
constexpr std::int64_t kStrideQuantum = 16 / static_cast<std::int64_t>(sizeof(bf16));

[[noreturn]] void Refuse(const std::string& sentence) {
  BadInput(std::string(kOperation) + sentence);
}

struct Axis {
  const char* name;
  std::int64_t length, stride;
};

struct View {
  const char* name;
  const bf16* data;
  Axis axes[5];
  std::int64_t channel_stride;
};

View ViewOf(const Args& a, const char* name, const bf16* data, const Strides& s) {
  return {name,
          data,
          {{"batch", a.b, s.batch},
           {"T", a.t, s.t},
           {"Y", a.y, s.y},
           {"X", a.x, s.x},
           {"head", a.h, s.head}},
          s.channel};
}

// One past the last element.
const bf16* End(const View& view) {
  std::int64_t last = 0;
  for (const Axis& axis : view.axes) last += (axis.length - 1) * axis.stride;
  return view.data + last + kHeadDim;
}

void CheckView(const View& view) {
  if (view.data == nullptr) Refuse(std::string(view.name) + " is null");
  if (view.channel_stride != 1) {
    Refuse(std::string(view.name) + " has channel stride " + std::to_string(view.channel_stride) +
           ", supported is 1");
  }
  for (const Axis& axis : view.axes) {
    if (axis.stride < 0 || axis.stride % kStrideQuantum != 0) {
      Refuse(std::string(view.name) + " has " + axis.name + " stride " +
             std::to_string(axis.stride) + " elements, supported are multiples of " +
             std::to_string(kStrideQuantum) + " (16 bytes)");
    }
  }
}

// Sorted by stride, every axis must step over all of the smaller ones.
void CheckDisjointElements(const View& output) {
  std::vector<Axis> axes(std::begin(output.axes), std::end(output.axes));
  std::erase_if(axes, [](const Axis& axis) { return axis.length == 1; });
  std::sort(axes.begin(), axes.end(),
            [](const Axis& a, const Axis& b) { return a.stride < b.stride; });
  std::int64_t extent = kHeadDim;
  for (const Axis& axis : axes) {
    if (axis.stride < extent) {
      Refuse(std::string(output.name) + " has " + axis.name + " stride " +
             std::to_string(axis.stride) + ", so that its elements share memory");
    }
    extent += (axis.length - 1) * axis.stride;
  }
}

void CheckNoOverlap(const View& output, const View& input) {
  const std::less<const bf16*> before;
  if (before(output.data, End(input)) && before(input.data, End(output))) {
    Refuse(std::string(output.name) + " overlaps input " + input.name);
  }
}

void CheckWindow(const char* axis, std::int64_t length, std::int64_t window) {
  const std::string name(axis);
  if (window < 1)
    Refuse("axis " + name + ": window " + std::to_string(window) + " is not positive");
  // An even window is only legal where it is the whole axis (EffectiveWindow), hence unambiguous.
  if (window % 2 == 0 && window != length) {
    Refuse("axis " + name + ": window " + std::to_string(window) +
           " is even, supported are odd windows");
  }
  if (length < window) {
    Refuse("axis " + name + ": length " + std::to_string(length) + " smaller than window " +
           std::to_string(window));
  }
}

}  // namespace

Strides ContiguousStrides(std::int64_t t, std::int64_t y, std::int64_t x, std::int64_t h) {
  const std::int64_t point = h * kHeadDim;
  return {t * y * x * point, y * x * point, x * point, point, kHeadDim, 1};
}

void Check(const Args& args) {
  if (args.d != kHeadDim) {
    Refuse("head dimension is " + std::to_string(args.d) + ", supported is 64");
  }
  CheckWindow("T", args.t, args.kt);
  CheckWindow("Y", args.y, args.ky);
  CheckWindow("X", args.x, args.kx);
  if (args.b * args.h == 0) return;
  const View output = ViewOf(args, "O", args.o, args.o_strides);
  const View inputs[] = {ViewOf(args, "Q", args.q, args.q_strides),
                         ViewOf(args, "K", args.k, args.k_strides),
                         ViewOf(args, "V", args.v, args.v_strides)};
  for (const View& input : inputs) CheckView(input);
  CheckView(output);
  CheckDisjointElements(output);
  for (const View& input : inputs) CheckNoOverlap(output, input);
}

Args Bind(const Problem& problem, const Bundle& inputs, Bundle& outputs) {
  Args args;
  args.b = problem.axis("B");
  args.t = problem.axis("T");
  args.y = problem.axis("Y");
  args.x = problem.axis("X");
  args.h = problem.axis("H");
  args.d = problem.axis("D");
  args.kt = EffectiveWindow(problem, "T");
  args.ky = EffectiveWindow(problem, "Y");
  args.kx = EffectiveWindow(problem, "X");
  args.q = inputs["Q"].as<bf16>();
  args.k = inputs["K"].as<bf16>();
  args.v = inputs["V"].as<bf16>();
  args.o = outputs["O"].as<bf16>();
  args.q_strides = args.k_strides = args.v_strides = args.o_strides =
      ContiguousStrides(args.t, args.y, args.x, args.h);
  return args;
}

}  // namespace assay::neighborhood_attention_3d
