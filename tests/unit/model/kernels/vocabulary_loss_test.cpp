#include "tests/support/kernel_calls.h"
#include "tests/unit/model/kernels/kernel_test_support.h"

namespace jforge::test {
namespace {

class VocabularyLoss : public KernelTest {};
JFORGE_KERNEL_SUITE(VocabularyLoss);

struct Loss {
  std::int64_t rows, hidden, vocabulary;
  std::vector<LossItem> items;
  float consistency_scale = 1, ar_scale = 1;
  ArLoss ar_loss = ArLoss::cross_entropy;
};

Doubles logits_of(const Loss& l, const Doubles& hidden, const Doubles& head, std::int64_t row) {
  Doubles z(at(l.vocabulary));
  for (std::int64_t v = 0; v < l.vocabulary; ++v) {
    for (std::int64_t c = 0; c < l.hidden; ++c) {
      z[at(v)] += hidden[at(row * l.hidden + c)] * head[at(v * l.hidden + c)];
    }
  }
  return z;
}

Doubles log_softmax(Doubles z) {
  const double highest = *std::max_element(z.begin(), z.end());
  double sum = 0;
  for (const double value : z) sum += std::exp(value - highest);
  for (double& value : z) value -= highest + std::log(sum);
  return z;
}

/// The teacher is fixed, because it is detached.
VocabularyLossSums sums_of(const Loss& l, const Doubles& hidden, const Doubles& head,
                           const Doubles& teacher_hidden, const Doubles& teacher_head) {
  VocabularyLossSums sums;
  const auto divergence = [&](const LossItem& item, std::int64_t row) {
    const Doubles teacher =
        log_softmax(logits_of(l, teacher_hidden, teacher_head,
                              item.teacher_row >= 0 ? item.teacher_row : item.clean_row));
    const Doubles student = log_softmax(logits_of(l, hidden, head, row));
    double sum = 0;
    for (std::size_t v = 0; v < teacher.size(); ++v) {
      sum += std::exp(teacher[v]) * (teacher[v] - student[v]);
    }
    return sum;
  };
  for (const LossItem& item : l.items) {
    if (item.target >= 0) {
      sums.autoregressive +=
          static_cast<double>(item.ar_weight) *
          (l.ar_loss == ArLoss::distillation
               ? divergence(item, item.clean_row)
               : -log_softmax(logits_of(l, hidden, head, item.clean_row))[at(item.target)]);
    }
    if (item.student_row >= 0) {
      sums.consistency +=
          static_cast<double>(item.consistency_weight) * divergence(item, item.student_row);
    }
  }
  return sums;
}

struct Result {
  VocabularyLossSums sums;
  Floats hidden_gradient, head_gradient;
};

Result run(KernelSet& kernels, const Loss& l, const Floats& hidden, const Floats& head,
           float before = 0.0F) {
  Result r{{}, Floats(hidden.size(), 99.0F), Floats(head.size(), before)};
  r.sums = vocabulary_loss(kernels, view(hidden, Shape{l.rows, l.hidden}),
                           view(head, Shape{l.vocabulary, l.hidden}), l.items, l.consistency_scale,
                           l.ar_scale, view(r.hidden_gradient, Shape{l.rows, l.hidden}),
                           view(r.head_gradient, Shape{l.vocabulary, l.hidden}));
  return r;
}

struct Teacher {
  std::int64_t rows;
  Floats hidden, head;
};

Result run(KernelSet& kernels, const Loss& l, const Floats& hidden, const Floats& head,
           const Teacher& teacher) {
  Result r{{}, Floats(hidden.size(), 99.0F), Floats(head.size())};
  r.sums = vocabulary_loss(kernels, view(hidden, Shape{l.rows, l.hidden}),
                           view(head, Shape{l.vocabulary, l.hidden}), l.items, l.consistency_scale,
                           l.ar_scale, view(r.hidden_gradient, Shape{l.rows, l.hidden}),
                           view(r.head_gradient, Shape{l.vocabulary, l.hidden}),
                           {.hidden = view(teacher.hidden, Shape{teacher.rows, l.hidden}),
                            .head = view(teacher.head, Shape{l.vocabulary, l.hidden})},
                           l.ar_loss);
  return r;
}

const std::vector<LossItem> kItems = {
    {.clean_row = 0, .target = 3, .ar_weight = 0.5F},
    {.clean_row = 1,
     .target = 20,
     .ar_weight = 0.25F,
     .student_row = 5,
     .consistency_weight = 0.7F},
    {.clean_row = 2, .student_row = 6, .consistency_weight = 0.3F},
    {.clean_row = 3},
    {.clean_row = 4, .target = 0, .ar_weight = 0.0F, .student_row = 7, .consistency_weight = 0.0F},
};

TEST_P(VocabularyLoss, SumsAndGradientsMatchFiniteDifferences) {
  const Loss l{9, 6, 21, kItems, 1.5F, 0.8F};
  const Floats hidden = random_floats(l.rows * l.hidden, 1);
  const Floats head = random_floats(l.vocabulary * l.hidden, 2);
  const Result r = run(*kernels_, l, hidden, head, 2.0F);
  const Doubles h = to_double(hidden);
  const Doubles w = to_double(head);
  const VocabularyLossSums expected = sums_of(l, h, w, h, w);
  EXPECT_NEAR(r.sums.consistency, expected.consistency, 1e-5 * expected.consistency);
  EXPECT_NEAR(r.sums.autoregressive, expected.autoregressive, 1e-5 * expected.autoregressive);
  const auto loss = [&](const Doubles& a, const Doubles& b) {
    const VocabularyLossSums s = sums_of(l, a, b, h, w);
    return 1.5 * s.consistency + static_cast<double>(0.8F) * s.autoregressive;
  };
  const Doubles dh = numerical_gradient([&](const Doubles& x) { return loss(x, w); }, h);
  EXPECT_LT(relative_error(r.hidden_gradient, dh), 1e-5);
  Doubles dw = numerical_gradient([&](const Doubles& x) { return loss(h, x); }, w);
  for (double& value : dw) value += 2.0;
  EXPECT_LT(relative_error(r.head_gradient, dw), 1e-5);
  for (std::int64_t c = 0; c < l.hidden; ++c) {
    for (const std::int64_t row : {2, 3, 4, 7, 8}) {
      // No gradient: pure teachers, weight zero, rows outside the loss.
      EXPECT_EQ(r.hidden_gradient[at(row * l.hidden + c)], 0.0F) << row;
    }
  }
}

/// kItems with rows of a teacher in another order.
std::vector<LossItem> taught_items() {
  std::vector<LossItem> items = kItems;
  items[0].teacher_row = 1;  // read by distillation only
  items[1].teacher_row = 2;
  items[2].teacher_row = 0;
  items[4].teacher_row = 3;
  return items;
}

TEST_P(VocabularyLoss, WithASeparateTeacherSumsAndGradientsMatchFiniteDifferences) {
  for (const ArLoss ar_loss : {ArLoss::cross_entropy, ArLoss::distillation}) {
    const Loss l{9, 6, 21, taught_items(), 1.5F, 0.8F, ar_loss};
    const Floats hidden = random_floats(l.rows * l.hidden, 1);
    const Floats head = random_floats(l.vocabulary * l.hidden, 2);
    const Teacher teacher{4, random_floats(4 * l.hidden, 3), random_floats(l.vocabulary * 6, 4)};
    const Result r = run(*kernels_, l, hidden, head, teacher);
    const Doubles h = to_double(hidden);
    const Doubles w = to_double(head);
    const Doubles th = to_double(teacher.hidden);
    const Doubles tw = to_double(teacher.head);
    const VocabularyLossSums expected = sums_of(l, h, w, th, tw);
    EXPECT_NEAR(r.sums.consistency, expected.consistency, 1e-5 * expected.consistency);
    EXPECT_NEAR(r.sums.autoregressive, expected.autoregressive, 1e-5 * expected.autoregressive);
    const auto loss = [&](const Doubles& a, const Doubles& b) {
      const VocabularyLossSums s = sums_of(l, a, b, th, tw);
      return 1.5 * s.consistency + static_cast<double>(0.8F) * s.autoregressive;
    };
    EXPECT_LT(relative_error(r.hidden_gradient,
                             numerical_gradient([&](const Doubles& x) { return loss(x, w); }, h)),
              1e-5);
    EXPECT_LT(relative_error(r.head_gradient,
                             numerical_gradient([&](const Doubles& x) { return loss(h, x); }, w)),
              1e-5);
    // Only the divergence depends on the teacher.
    const Result own = run(*kernels_, {9, 6, 21, kItems, 1.5F, 0.8F}, hidden, head);
    const double apart = std::abs(r.sums.autoregressive - own.sums.autoregressive);
    if (ar_loss == ArLoss::cross_entropy) {
      EXPECT_LT(apart, 1e-6);
    } else {
      EXPECT_GT(apart, 1e-2);
    }
    EXPECT_GT(std::abs(r.sums.consistency - own.sums.consistency), 1e-2);
  }
}

constexpr std::int32_t kManyPairs = 700;

/// More than a chunk; every third item has no target, every fifth no student.
std::vector<LossItem> many_items(std::int32_t vocabulary) {
  std::vector<LossItem> items;
  for (std::int32_t i = 0; i < kManyPairs; ++i) {
    items.push_back({.clean_row = i,
                     .target = i % 3 == 0 ? -1 : (i * 37) % vocabulary,
                     .ar_weight = 0.01F,
                     .student_row = i % 5 == 0 ? -1 : kManyPairs + i,
                     .consistency_weight = 0.02F,
                     .teacher_row = i});
  }
  return items;
}

TEST_P(VocabularyLoss, DistilledFromItselfCleanRowsHaveNoLossAndNoGradient) {
  Loss l{2 * kManyPairs, 8, 900, many_items(900), 1.0F, 1.0F, ArLoss::distillation};
  const Floats hidden = random_floats(l.rows * l.hidden, 1);
  const Floats head = random_floats(l.vocabulary * l.hidden, 2);
  const Teacher itself{l.rows, hidden, head};
  const Result both = run(*kernels_, l, hidden, head, itself);
  EXPECT_NEAR(both.sums.autoregressive, 0.0, 1e-6);
  EXPECT_GT(both.sums.consistency, 0.1);
  for (std::int64_t i = 0; i < kManyPairs * l.hidden; ++i) {
    EXPECT_LT(std::abs(both.hidden_gradient[at(i)]), 1e-6F) << i;
  }
  // Teacher rows still serve the clean ones.
  l.consistency_scale = 0.0F;
  const Teacher another{l.rows, random_floats(l.rows * l.hidden, 3), head};
  const Result alone = run(*kernels_, l, hidden, head, another);
  EXPECT_EQ(alone.sums.consistency, 0.0);
  EXPECT_GT(alone.sums.autoregressive, 0.1);
}

TEST_P(VocabularyLoss, AStudentThatTeachesItselfHasTheSameLossEitherWay) {
  const Loss l{2 * kManyPairs, 8, 900, many_items(900), 1.0F, 1.0F};
  const Floats hidden = random_floats(l.rows * l.hidden, 1);
  const Floats head = random_floats(l.vocabulary * l.hidden, 2);
  const Result own = run(*kernels_, l, hidden, head);
  const Result apart = run(*kernels_, l, hidden, head, Teacher{l.rows, hidden, head});
  EXPECT_NEAR(apart.sums.consistency, own.sums.consistency, 1e-6 * own.sums.consistency);
  EXPECT_NEAR(apart.sums.autoregressive, own.sums.autoregressive, 1e-6 * own.sums.autoregressive);
  EXPECT_LT(relative_error(apart.hidden_gradient, to_double(own.hidden_gradient)), 1e-5);
  EXPECT_LT(relative_error(apart.head_gradient, to_double(own.head_gradient)), 1e-5);
}

TEST_P(VocabularyLoss, ManyChunksGiveTheSameSumsAsOneItemAtATime) {
  // With 9000 tokens about 1860 rows make 16 Mi floats; the cap of 1024 rows splits 1400 rows.
  const Loss l{2 * kManyPairs, 8, 9000, many_items(9000), 1.0F, 1.0F};
  const Floats hidden = random_floats(l.rows * l.hidden, 1);
  const Floats head = random_floats(l.vocabulary * l.hidden, 2);
  const Result all = run(*kernels_, l, hidden, head);
  const std::size_t half = 350;
  Loss first = l;
  first.items.resize(half);
  Loss second = l;
  second.items.erase(second.items.begin(), second.items.begin() + half);
  const Result a = run(*kernels_, first, hidden, head);
  const Result b = run(*kernels_, second, hidden, head);
  EXPECT_NEAR(all.sums.consistency, a.sums.consistency + b.sums.consistency,
              1e-6 * all.sums.consistency);
  EXPECT_NEAR(all.sums.autoregressive, a.sums.autoregressive + b.sums.autoregressive,
              1e-6 * all.sums.autoregressive);
  Doubles hidden_sum(hidden.size());
  Doubles head_sum(head.size());
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    hidden_sum[i] =
        static_cast<double>(a.hidden_gradient[i]) + static_cast<double>(b.hidden_gradient[i]);
  }
  for (std::size_t i = 0; i < head.size(); ++i) {
    head_sum[i] = static_cast<double>(a.head_gradient[i]) + static_cast<double>(b.head_gradient[i]);
  }
  EXPECT_LT(relative_error(all.hidden_gradient, hidden_sum), 1e-5);
  EXPECT_LT(relative_error(all.head_gradient, head_sum), 1e-5);
  kernels_->release_work_space();
  const Result again = run(*kernels_, l, hidden, head);
  EXPECT_EQ(all.sums.consistency, again.sums.consistency);
  EXPECT_TRUE(same_bits(all.head_gradient, again.head_gradient));
}

TEST_P(VocabularyLoss, EqualRowsHaveNoDivergenceAndDivergenceIsNeverNegative) {
  Loss l{4,
         16,
         500,
         {{.clean_row = 0, .student_row = 1, .consistency_weight = 1.0F},
          {.clean_row = 2, .student_row = 3, .consistency_weight = 1.0F}}};
  Floats hidden = random_floats(l.rows * l.hidden, 3);
  std::copy_n(hidden.begin(), 16, hidden.begin() + 16);
  std::copy_n(hidden.begin() + 32, 16, hidden.begin() + 48);
  hidden[48] += 1e-4F;
  const Floats head = random_floats(l.vocabulary * l.hidden, 4);
  const Result r = run(*kernels_, l, hidden, head);
  EXPECT_GE(r.sums.consistency, -1e-7);
  EXPECT_LT(r.sums.consistency, 1e-6);
  for (std::int64_t c = 16; c < 32; ++c) EXPECT_LT(std::abs(r.hidden_gradient[at(c)]), 1e-5F);
}

TEST_P(VocabularyLoss, LargeLogitsStayFinite) {
  Loss l{2,
         4,
         40,
         {{.clean_row = 0,
           .target = 7,
           .ar_weight = 1.0F,
           .student_row = 1,
           .consistency_weight = 1.0F}}};
  const Floats hidden = random_floats(l.rows * l.hidden, 5, 100.0F);
  const Floats head = random_floats(l.vocabulary * l.hidden, 6, 100.0F);
  const Result r = run(*kernels_, l, hidden, head);
  const Doubles h = to_double(hidden);
  const Doubles w = to_double(head);
  const VocabularyLossSums expected = sums_of(l, h, w, h, w);
  EXPECT_NEAR(r.sums.consistency, expected.consistency, 1e-4 * std::abs(expected.consistency));
  EXPECT_NEAR(r.sums.autoregressive, expected.autoregressive,
              1e-4 * std::abs(expected.autoregressive));
  for (const float value : r.hidden_gradient) EXPECT_TRUE(std::isfinite(value));
}

TEST_P(VocabularyLoss, WithoutConsistencyOnlyTheCrossEntropyIsComputed) {
  Loss l{9, 6, 21, kItems, 0.0F, 1.0F};
  const Floats hidden = random_floats(l.rows * l.hidden, 1);
  const Floats head = random_floats(l.vocabulary * l.hidden, 2);
  const Result r = run(*kernels_, l, hidden, head);
  EXPECT_EQ(r.sums.consistency, 0.0);
  l.consistency_scale = 1.0F;
  EXPECT_NEAR(run(*kernels_, l, hidden, head).sums.autoregressive, r.sums.autoregressive, 1e-6);
  for (std::int64_t i = 5 * 6; i < 9 * 6; ++i) EXPECT_EQ(r.hidden_gradient[at(i)], 0.0F);
  l.items.clear();
  const Result none = run(*kernels_, l, hidden, head, 3.0F);
  EXPECT_EQ(none.sums.autoregressive, 0.0);
  for (const float value : none.hidden_gradient) EXPECT_EQ(value, 0.0F);
  for (const float value : none.head_gradient) EXPECT_EQ(value, 3.0F);
}

TEST_P(VocabularyLoss, BadItemsAndShapesAreRefused) {
  const Floats hidden = random_floats(9 * 6, 1);
  const Floats head = random_floats(21 * 6, 2);
  for (const LossItem& bad :
       {LossItem{.clean_row = 9}, LossItem{.clean_row = -1}, LossItem{.clean_row = 0, .target = 21},
        LossItem{.clean_row = 0, .student_row = 9}}) {
    EXPECT_THROW(run(*kernels_, {9, 6, 21, {bad}}, hidden, head), InternalError);
  }
  const Teacher teacher{4, Floats(4 * 6), head};
  Floats gradient(head.size());
  Floats states_gradient(hidden.size());
  for (const std::int32_t row : {-1, 4}) {
    const LossItem bad{.clean_row = 0, .student_row = 1, .teacher_row = row};
    EXPECT_THROW(run(*kernels_, {9, 6, 21, {bad}}, hidden, head, teacher), InternalError);
    const LossItem untaught{.clean_row = 0, .target = 3, .teacher_row = row};
    EXPECT_NO_THROW(run(*kernels_, {9, 6, 21, {untaught}}, hidden, head, teacher));
    EXPECT_THROW(
        run(*kernels_, {9, 6, 21, {untaught}, 1, 1, ArLoss::distillation}, hidden, head, teacher),
        InternalError);
  }
  EXPECT_THROW(vocabulary_loss(*kernels_, view(hidden, Shape{9, 6}), view(head, Shape{21, 6}),
                               kItems, 1, 1, view(states_gradient, Shape{9, 6}),
                               view(gradient, Shape{21, 6}), {}, ArLoss::distillation),
               InternalError)
      << "distilled without a teacher";
  Floats small(6);
  EXPECT_THROW(
      vocabulary_loss(*kernels_, view(hidden, Shape{9, 6}), view(head, Shape{21, 6}), {}, 1, 1,
                      view(states_gradient, Shape{9, 6}), view(gradient, Shape{21, 6}),
                      {.hidden = view(hidden, Shape{9, 6}), .head = view(small, Shape{1, 6})}),
      InternalError);
  EXPECT_THROW(
      vocabulary_loss(*kernels_, view(hidden, Shape{9, 6}), view(head, Shape{21, 6}), kItems, 1, 1,
                      view(small, Shape{1, 6}), view(gradient, Shape{21, 6})),
      InternalError);
}

}  // namespace
}  // namespace jforge::test
