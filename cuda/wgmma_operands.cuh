// The accumulators of wgmma as operands of inline assembly, which knows no loops: for an
// instruction with that many of them, their numbers in the text and their constraints. Macros of
// wgmma*.cuh; nothing else uses them.
#pragma once

#define ASSAY_WGMMA_NUMBERS_32               \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define ASSAY_WGMMA_NUMBERS_64                 \
  ASSAY_WGMMA_NUMBERS_32                       \
  ", %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, "   \
  "%48, %49, %50, %51, %52, %53, %54, %55, "   \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define ASSAY_WGMMA_NUMBERS_80                 \
  ASSAY_WGMMA_NUMBERS_64                       \
  ", %64, %65, %66, %67, %68, %69, %70, %71, " \
  "%72, %73, %74, %75, %76, %77, %78, %79"
#define ASSAY_WGMMA_NUMBERS_88 \
  ASSAY_WGMMA_NUMBERS_80       \
  ", %80, %81, %82, %83, %84, %85, %86, %87"
#define ASSAY_WGMMA_NUMBERS_96 \
  ASSAY_WGMMA_NUMBERS_88       \
  ", %88, %89, %90, %91, %92, %93, %94, %95"
#define ASSAY_WGMMA_NUMBERS_128                      \
  ASSAY_WGMMA_NUMBERS_96                             \
  ", %96, %97, %98, %99, %100, %101, %102, %103, "   \
  "%104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, " \
  "%120, %121, %122, %123, %124, %125, %126, %127"

#define ASSAY_WGMMA_FLOATS_8(d, i)                                                            \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define ASSAY_WGMMA_FLOATS_16(d, i) ASSAY_WGMMA_FLOATS_8(d, i), ASSAY_WGMMA_FLOATS_8(d, i + 8)
#define ASSAY_WGMMA_FLOATS_32(d, i) ASSAY_WGMMA_FLOATS_16(d, i), ASSAY_WGMMA_FLOATS_16(d, i + 16)
#define ASSAY_WGMMA_FLOATS_64(d, i) ASSAY_WGMMA_FLOATS_32(d, i), ASSAY_WGMMA_FLOATS_32(d, i + 32)
