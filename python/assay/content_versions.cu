// New content for every call of a GPU peer, compiled when it is first needed: base/low_bits.h and
// cuda/content_versions.cu of the program say what changes and why. The same bits as there.
typedef unsigned long long Word;

struct Part {
  Word* words;
  unsigned bytes, tensor;
  Word first_line;
  Word low, mantissa, exponent;
  int top, unused;
};

__device__ Word Draw(Word version, Word tensor, Word line) {
  if (version == 0) return 0;
  const Word golden = 0x9E3779B97F4A7C15ull, mixed = tensor * golden;
  Word x = (version ^ (mixed << 32 | mixed >> 32)) + (line + 1) * golden;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ x >> 27) * 0x94D049BB133111EBull;
  return x ^ x >> 31;
}

__device__ Word Change(Word word, Word draw, int place, const Part& part) {
  const Word below = (part.low << part.top) - part.low;
  const Word inexact = (word & part.mantissa) + below, finite = (~word & part.exponent) + below;
  return word ^ (draw >> place & (inexact & finite) >> part.top & part.low);
}

// first + step * i are the parts that change to version state[0], see StepsOf; state[1] counts
// blocks that have finished, the last of which counts the version up. 8 words are a line of 64
// bytes.
extern "C" __global__ void __launch_bounds__(256)
    next_version(const Part* parts, Word* versions, unsigned count, Word* state) {
  const Word to = state[0], most = 256;
  const Word comb = count < most ? 1 : (count + most - 1) / most;
  const bool whole = to == 0 || to == 1ull << 32;
  const Word step = whole ? 1 : comb, first = whole ? 0 : Draw(to, 1000, 0) % comb;
  for (Word p = first + blockIdx.x * step; p < count; p += gridDim.x * step) {
    const Part part = parts[p];
    const Word from = versions[p];
    for (unsigned w = threadIdx.x; 8 * w < part.bytes; w += blockDim.x) {
      const Word line = part.first_line + w / 8;
      const Word draw = Draw(from, part.tensor, line) ^ Draw(to, part.tensor, line);
      if (8 * w + 8 <= part.bytes) {
        part.words[w] = Change(part.words[w], draw, w % 8, part);
        continue;
      }
      // Lanes behind the end are zeros, which stay.
      unsigned char* const bytes = reinterpret_cast<unsigned char*>(part.words + w);
      Word word = 0;
      for (unsigned b = 0; b < part.bytes - 8 * w; ++b) word |= Word(bytes[b]) << 8 * b;
      word = Change(word, draw, w % 8, part);
      for (unsigned b = 0; b < part.bytes - 8 * w; ++b) bytes[b] = word >> 8 * b;
    }
    __syncthreads();
    if (threadIdx.x == 0) versions[p] = to;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicInc(reinterpret_cast<unsigned*>(state + 1), gridDim.x - 1) == gridDim.x - 1)
    state[0] = to + 1;
}
