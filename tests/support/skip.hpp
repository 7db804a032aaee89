// SPDX-License-Identifier: Apache-2.0
// Test cases that need what a machine may lack, and the end of a test program: CTest counts a
// program that has skipped a case as skipped, and one whose filters choose no case as failed.
//
// Such a case stands in a test suite needs-NAME, which has an entry of its own in CTest.
#pragma once

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

namespace slimpack::test {

/// The status by which CTest counts a test as skipped: SKIP_RETURN_CODE.
inline constexpr int kSkipped = 77;

inline int skipped_cases = 0;
inline unsigned chosen_cases = 0;

/// Whether SLIMPACK_MUST_RUN, a list with commas, names `need`: CI has installed it.
[[nodiscard]] inline bool must_run(const std::string& need) {
  const char* list = std::getenv("SLIMPACK_MUST_RUN");
  return list != nullptr &&
         (',' + std::string(list) + ',').find(',' + need + ',') != std::string::npos;
}

/// Says that the running test case tests nothing for want of `need`. It fails where that must be
/// there.
inline void skip(const std::string& need, const std::string& why) {
  ++skipped_cases;
  std::printf("skipped: %s: %s\n", doctest::getContextOptions()->currentTest->m_name, why.c_str());
  if (must_run(need)) FAIL_CHECK("SLIMPACK_MUST_RUN names " << need << ", but " << why);
}

/// Runs the cases that the command line chooses.
inline int run_tests(doctest::Context& context) {
  const int status = context.run();
  if (status != 0 || context.shouldExit()) return status;
  if (chosen_cases == 0) {
    std::puts("no test case has these names");
    return 1;
  }
  return skipped_cases > 0 ? kSkipped : 0;
}

/// Counts the cases that the filters choose.
struct ChosenCases final : doctest::IReporter {
  explicit ChosenCases(const doctest::ContextOptions& /*options*/) {}
  void report_query(const doctest::QueryData& /*query*/) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats& run) override {
    chosen_cases = run.numTestCasesPassingFilters;
  }
  void test_case_start(const doctest::TestCaseData& /*data*/) override {}
  void test_case_reenter(const doctest::TestCaseData& /*data*/) override {}
  void test_case_end(const doctest::CurrentTestCaseStats& /*stats*/) override {}
  void test_case_exception(const doctest::TestCaseException& /*thrown*/) override {}
  void subcase_start(const doctest::SubcaseSignature& /*subcase*/) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData& /*data*/) override {}
  void log_message(const doctest::MessageData& /*message*/) override {}
  void test_case_skipped(const doctest::TestCaseData& /*data*/) override {}
};

}  // namespace slimpack::test
