#pragma once

/// With internal linkage: see vector_product_internal.h.

#include <xmmintrin.h>

namespace {

/// Lets arithmetic take denormal operands and results for 0.
class DenormalsAsZero {
 public:
  DenormalsAsZero() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040U); }  // FTZ and DAZ
  ~DenormalsAsZero() { _mm_setcsr(before_); }
  DenormalsAsZero(const DenormalsAsZero&) = delete;
  DenormalsAsZero& operator=(const DenormalsAsZero&) = delete;

 private:
  unsigned before_;
};

}  // namespace
