// A program for its options alone: with them GoogleTest's headers are precompiled for all tests
// (add_jforge_test).
int main() {}
